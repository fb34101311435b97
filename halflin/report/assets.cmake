# Embeds the report's page and its charting library into halflin_assets, a list of sources.
# Run as a script (cmake -DNAME=... -DIN=... -DOUT=... -P assets.cmake) it writes one such source.

if(CMAKE_SCRIPT_MODE_FILE)
  set(bytes "")
  if(NOT IN STREQUAL "")
    file(READ "${IN}" hex HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
    # Lines of a length that editors and compilers bear.
    string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n"
           bytes "${bytes}")
  endif()
  file(WRITE "${OUT}" "#include \"halflin/report/assets.h\"

namespace halflin::assets {

namespace {
// The last byte is no part of the file.
constexpr unsigned char kBytes[] = {
${bytes}0};
}  // namespace

std::string_view ${NAME}() {
  return {reinterpret_cast<const char*>(kBytes), sizeof(kBytes) - 1};
}

}  // namespace halflin::assets
")
  return()
endif()

find_file(HALFLIN_CHART_JS NAMES chart.min.js Chart.min.js chart.umd.js
  PATHS /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist
  DOC "Chart.js, minified, as Debian's libjs-chart.js has it" NO_DEFAULT_PATH)
set(halflin_chart_js "")
if(HALFLIN_CHART_JS)
  set(halflin_chart_js "${HALFLIN_CHART_JS}")
else()
  message(WARNING "Chart.js was not found: halflin report will write no HTML. "
    "Install libjs-chart.js, or set HALFLIN_CHART_JS to a chart.min.js.")
endif()

set(halflin_assets "")
function(halflin_embed name file)
  set(out ${CMAKE_BINARY_DIR}/assets/${name}.cc)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} "-DIN=${file}" -DOUT=${out}
            -P ${CMAKE_SOURCE_DIR}/halflin/report/assets.cmake
    DEPENDS ${file} ${CMAKE_SOURCE_DIR}/halflin/report/assets.cmake
    VERBATIM)
  set(halflin_assets ${halflin_assets} ${out} PARENT_SCOPE)
endfunction()

set(halflin_asset_folder ${CMAKE_SOURCE_DIR}/halflin/report/assets)
halflin_embed(page_html ${halflin_asset_folder}/page.html)
halflin_embed(style_css ${halflin_asset_folder}/style.css)
halflin_embed(base_js ${halflin_asset_folder}/base.js)
halflin_embed(charts_js ${halflin_asset_folder}/charts.js)
halflin_embed(tokens_js ${halflin_asset_folder}/tokens.js)
halflin_embed(analysis_js ${halflin_asset_folder}/analysis.js)
halflin_embed(allocation_js ${halflin_asset_folder}/allocation.js)
halflin_embed(report_js ${halflin_asset_folder}/report.js)
halflin_embed(chart_licence ${halflin_asset_folder}/chart-licence.txt)
halflin_embed(chart_js "${halflin_chart_js}")

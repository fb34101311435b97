// Files of halflin/report/assets/ and the charting library, embedded by assets.cmake.
#pragma once

#include <string_view>

namespace halflin::assets {

std::string_view page_html();
std::string_view style_css();
std::string_view base_js();
std::string_view charts_js();
std::string_view tokens_js();
std::string_view analysis_js();
std::string_view allocation_js();
std::string_view report_js();
std::string_view chart_js();  // Chart.js; empty where the build found none
std::string_view chart_licence();

}  // namespace halflin::assets

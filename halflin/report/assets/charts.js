// Charts, drawn by Chart.js. What this adds: intervals, logarithmic axes that keep the sign, a mark
// at the chosen layer, colours that follow the theme, a legend of real buttons.
'use strict';

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const seriesColor = (i) => css('--s' + i % 8);
const POINTS = ['circle', 'triangle', 'rect', 'rectRot', 'star', 'crossRot', 'rectRounded', 'circle'];

Chart.defaults.animation = false;
Chart.defaults.maintainAspectRatio = false;
Chart.defaults.font.size = 12;

// A line from lo to hi through each point of a dataset that has them.
const whiskers = {
  id: 'whiskers',
  beforeDatasetsDraw(chart) {
    const {ctx, chartArea: area, scales: {y}} = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(area.left, area.top, area.width, area.height);
    ctx.clip();
    chart.data.datasets.forEach((set, i) => {
      if (!set.whisker || !chart.isDatasetVisible(i)) return;
      ctx.strokeStyle = set.borderColor;
      ctx.globalAlpha = set.whiskerAlpha || 0.55;
      ctx.lineWidth = set.whisker;
      ctx.lineCap = 'butt';
      chart.getDatasetMeta(i).data.forEach((point, k) => {
        const {lo, hi} = set.data[k];
        if (lo === undefined || lo === null) return;
        ctx.beginPath();
        ctx.moveTo(point.x, y.getPixelForValue(lo));
        ctx.lineTo(point.x, y.getPixelForValue(hi));
        ctx.stroke();
      });
    });
    ctx.restore();
  },
};

// The chosen layer as a pale band, and reference lines.
const marks = {
  id: 'marks',
  beforeDraw(chart) {
    const {ctx, chartArea: area, scales: {x, y}} = chart;
    const {byLayer, refs} = chart.options.halflin || {};
    ctx.save();
    if (byLayer && state.layer !== null) {
      const half = Math.max(4, (x.getPixelForValue(1) - x.getPixelForValue(0)) / 2);
      const middle = x.getPixelForValue(state.layer);
      ctx.fillStyle = css('--accent-soft');
      const left = Math.max(area.left, middle - half);
      ctx.fillRect(left, area.top, Math.min(area.right, middle + half) - left, area.height);
    }
    for (const ref of refs || []) {
      const at = y.getPixelForValue(ref);
      if (at < area.top - 1 || at > area.bottom + 1) continue;
      ctx.strokeStyle = css('--soft');
      ctx.lineWidth = 1;
      ctx.beginPath();
      ctx.moveTo(area.left, at);
      ctx.lineTo(area.right, at);
      ctx.stroke();
    }
    ctx.restore();
  },
};
Chart.register(whiskers, marks);

const drawn = new Set();  // every chart on the page, to redraw when the theme changes
function redrawAll() { drawn.forEach((chart) => chart.redraw()); }

// Ticks at 0 and at 1, 3, 10, 30 ... on both sides, as many as there is room for.
function symlogTicks(scale, axis) {
  const {min: low, max: high} = axis;
  const room = (high - low) / Math.max(2, Math.min(8, axis.height / 30));
  const ticks = low <= 0 && high >= 0 ? [0] : [];
  for (const side of [1, -1]) {
    let last = 0;
    for (let k = -3; k <= 7; ++k) {
      for (const digit of [1, 3]) {
        const at = scale.to(digit * 10 ** k);
        if (at - last < room || side * at < low || side * at > high) continue;
        ticks.push(side * at);
        last = at;
      }
    }
  }
  return ticks.sort((a, b) => a - b);
}

// Series of points, with intervals and lines where they have them.
//   label: what the chart shows, for screen readers
//   series: [{name, color, point, dash, hidden, line, whisker, points: [{x, y, lo, hi, note}]}]
//   x: {title, byLayer, min, max}    y: {title, format, scale, min, max, refs}
// Returns a function that takes changed options and draws again.
function pointChart(parent, first) {
  const holder = el('div', {class: 'chart' + (first.small ? ' small' : '')});
  const legend = el('ul', {class: 'legend'});
  const canvas = el('canvas', {role: 'img', 'aria-label': first.label});
  holder.append(canvas);
  parent.append(holder, legend);
  const hidden = new Map();
  let options = first;
  let chart = null;

  function config() {
    const {x, y} = options;
    const scale = y.scale || {to: (v) => v, from: (u) => u};
    const up = (v) => (v === null || v === undefined ? null : scale.to(v));
    const count = options.series.length;
    const datasets = options.series.map((s, i) => {
      const color = s.color || seriesColor(i);
      const shift = x.byLayer && !x.together ? (i - (count - 1) / 2) * Math.min(0.12, 0.6 / count) : 0;
      return {
        label: s.name,
        data: s.points.map((p) => ({x: p.x + shift, y: up(p.y), lo: up(p.lo), hi: up(p.hi), raw: p})),
        borderColor: color,
        backgroundColor: color,
        showLine: s.line !== false,
        borderWidth: s.thin ? 1 : 1.75,
        borderDash: s.dash || [],
        pointStyle: s.point || POINTS[i % POINTS.length],
        pointRadius: (c) => (c.raw && c.raw.raw.end ? 0 : c.raw && c.raw.raw.big ? 6.5 : s.radius || 3.5),
        pointHoverRadius: 6,
        pointHitRadius: 6,
        whisker: s.whisker === undefined ? 1.5 : s.whisker,
        whiskerAlpha: s.whiskerAlpha,
        bare: s.radius === 0,
        hidden: hidden.has(s.name) ? hidden.get(s.name) : Boolean(s.hidden),
      };
    });
    // Whiskers count, too, when the axis is laid out, but may not squash everything else.
    const shown = datasets.filter((d) => !d.hidden).flatMap((d) => d.data);
    const values = shown.flatMap((p) => [p.y, p.lo, p.hi]).filter((v) => Number.isFinite(v));
    const low = Math.min(0, ...values);
    const high = Math.max(0, ...values);
    const pad = (high - low) * 0.04 || 0.5;
    // A logarithmic axis gets its own ticks; a linear one may round its ends to them.
    const span = y.min !== undefined ? {min: y.min, max: y.max}
      : y.scale ? {min: low - pad, max: high + pad} : {suggestedMin: low, suggestedMax: high};
    const grid = {color: css('--grid'), drawBorder: false, drawTicks: false};
    const ticks = {color: css('--soft'), padding: 8};
    return {
      type: 'scatter',
      data: {datasets},
      options: {
        halflin: {byLayer: x.byLayer, refs: (y.refs || []).map(up)},
        layout: {padding: {top: 6, right: 10}},
        interaction: {mode: 'nearest', axis: 'xy', intersect: false},
        onClick: (event, elements) => {
          if (x.byLayer && elements.length) {
            state.set('layer', datasets[elements[0].datasetIndex].data[elements[0].index].raw.x);
          }
        },
        scales: {
          x: {
            min: x.min, max: x.max, grid: {...grid, display: false},
            afterBuildTicks: x.byLayer ? (axis) => {
              const every = Math.ceil((axis.max - axis.min) / Math.max(4, axis.width / 34));
              axis.ticks = [];
              for (let l = Math.ceil(axis.min / every) * every; l <= axis.max; l += every) axis.ticks.push({value: l});
            } : undefined,
            ticks: {...ticks, maxRotation: 0},
            title: {display: true, text: x.title, color: css('--soft')},
          },
          y: {
            ...span, grid,
            afterBuildTicks: y.scale ? (axis) => {
              axis.ticks = symlogTicks(scale, axis).map((value) => ({value}));
            } : undefined,
            ticks: {...ticks, maxTicksLimit: 8, callback: (u) => y.format(Number(scale.from(u).toPrecision(6)), true)},
            title: {display: true, text: y.title, color: css('--soft')},
          },
        },
        plugins: {
          legend: {display: false},
          tooltip: {
            backgroundColor: css('--ink'), titleColor: css('--paper'), bodyColor: css('--paper'),
            padding: 10, cornerRadius: 6, displayColors: false,
            callbacks: {
              title: (items) => items[0].dataset.label,
              label: (item) => {
                const p = item.raw.raw;
                const lines = [x.byLayer ? `layer ${p.x}` : x.unit ? '' : `${number(p.x, 1)} % linear`,
                  interval({v: p.y, lo: p.lo === undefined ? null : p.lo, hi: p.hi}, y.format)];
                return [...lines, p.note].filter(Boolean);
              },
            },
          },
        },
      },
    };
  }

  function drawLegend(sets) {
    legend.replaceChildren(...sets.map((set, i) => {
      const button = el('button', {type: 'button', 'aria-pressed': String(!set.hidden)});
      button.innerHTML = swatch(set);
      button.append(set.label);
      button.addEventListener('click', () => {
        hidden.set(set.label, !set.hidden);
        redraw();
        legend.querySelectorAll('button')[i].focus();
      });
      return el('li', {}, button);
    }));
    legend.hidden = sets.length < 2;
  }

  function redraw() {
    if (chart) chart.destroy();
    const c = config();
    canvas.setAttribute('aria-label', options.label);
    chart = new Chart(canvas, c);
    drawLegend(c.data.datasets);
  }
  drawn.add({redraw, mark: () => chart && options.x.byLayer && chart.draw()});
  redraw();
  return (changed) => { options = changed; redraw(); };
}

// A series' line and point as a small picture; holds colours and numbers only.
function swatch(set) {
  const c = set.borderColor;
  const shape = {
    circle: `<circle cx="13" cy="7" r="3.5" fill="${c}"/>`,
    triangle: `<path d="M13 2.5l4 7.5H9z" fill="${c}"/>`,
    rect: `<path d="M9.7 3.7h6.6v6.6H9.7z" fill="${c}"/>`,
    rectRounded: `<rect x="9.7" y="3.7" width="6.6" height="6.6" rx="2" fill="${c}"/>`,
    rectRot: `<path d="M13 2.4L17.6 7 13 11.6 8.4 7z" fill="${c}"/>`,
    star: `<path d="M13 2.6v8.8M9 4.4l8 5.2M17 4.4l-8 5.2" stroke="${c}" stroke-width="1.5"/>`,
    crossRot: `<path d="M10 4l6 6M16 4l-6 6" stroke="${c}" stroke-width="1.5"/>`,
  }[set.pointStyle];
  const line = set.showLine
    ? `<path d="M1 7h24" stroke="${c}" stroke-width="1.75" stroke-dasharray="${set.borderDash.join(' ')}"/>` : '';
  const bar = set.showLine || !set.whisker ? ''
    : `<path d="M13 1v12" stroke="${c}" stroke-width="${set.whisker}" opacity="${set.whiskerAlpha || 0.55}"/>`;
  return `<svg width="26" height="14" aria-hidden="true">${line}${bar}${set.bare ? '' : shape}</svg>`;
}

// Bars over a linear axis: [{x, y, color}].
function barChart(parent, first) {
  const holder = el('div', {class: 'chart' + (first.small ? ' small' : '')});
  const canvas = el('canvas', {role: 'img', 'aria-label': first.label});
  holder.append(canvas);
  parent.append(holder);
  let options = first;
  let chart = null;
  function redraw() {
    if (chart) chart.destroy();
    canvas.setAttribute('aria-label', options.label);
    const ticks = {color: css('--soft'), padding: 6, maxRotation: 0};
    chart = new Chart(canvas, {
      type: 'bar',
      data: {
        labels: options.bars.map((b) => b.x),
        datasets: [{
          data: options.bars.map((b) => b.y),
          backgroundColor: options.bars.map((b) => css(b.color)),
          categoryPercentage: 1, barPercentage: options.tight ? 0.94 : 0.8, minBarLength: options.tight ? 0 : 1,
        }],
      },
      options: {
        layout: {padding: {top: 6}},
        onClick: (event, elements) => {
          if (options.pick && elements.length) options.pick(options.bars[elements[0].index]);
        },
        scales: {
          x: {grid: {display: false, drawBorder: false}, ticks: {...ticks, autoSkip: true, autoSkipPadding: 8},
            title: {display: Boolean(options.xTitle), text: options.xTitle, color: css('--soft')}},
          y: {grid: {color: css('--grid'), drawBorder: false, drawTicks: false},
            afterBuildTicks: options.scale ? (axis) => {
              axis.ticks = symlogTicks(options.scale, axis).map((value) => ({value}));
            } : undefined,
            ticks: {...ticks, maxTicksLimit: 5, callback: (u) => options.format(u)},
            title: {display: Boolean(options.yTitle), text: options.yTitle, color: css('--soft')}},
        },
        plugins: {
          legend: {display: false},
          tooltip: {
            backgroundColor: css('--ink'), titleColor: css('--paper'), bodyColor: css('--paper'),
            displayColors: false, cornerRadius: 6,
            callbacks: {title: () => '', label: (item) => options.bars[item.dataIndex].note},
          },
        },
      },
    });
  }
  drawn.add({redraw, mark() {}});
  redraw();
  return (changed) => { options = changed; redraw(); };
}

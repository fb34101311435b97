// The page: its sections, from top to bottom.
'use strict';

const sweeps = data.runs.filter((run) => run.sweep);
const single = sweeps.length === 1;  // then series have colours of their own
const layerRows = rows('layers');
const routing = rows('routing');
const folding = rows('folding');
const replacements = rows('replacements');
const COST = symlog(1);  // percent
const NATS = symlog(0.01);
const ofRun = (list, run) => list.filter((r) => r.run === run.label);
const byLayer = (list) => {
  const layers = (list || layerRows).map((r) => r.layer);
  return {title: 'layer', byLayer: true, min: Math.min(...layers) - 0.5, max: Math.max(...layers) + 0.5};
};
const point = (x, figure, note) => ({x, y: figure.v, lo: figure.lo, hi: figure.hi, note});
const colorName = (i) => seriesColor(i);

// Ends of an axis that hold all figures with their intervals, and low and high, in whole steps.
function bounds(list, low, high, step) {
  const least = Math.min(low, ...list.map((f) => f.lo ?? f.v));
  const most = Math.max(high, ...list.map((f) => f.hi ?? f.v));
  return {min: Math.floor(least / step) * step, max: Math.ceil(most / step) * step};
}

// Sections about one run at a time share a selector of the run.
function perRun(parent, list, draw) {
  const having = data.runs.filter((run) => ofRun(list, run).length > 0);
  let current = having[0];
  const update = (run) => { current = run; draw(run); };
  if (having.length > 1) {
    parent.append(el('div', {class: 'tools'}, choice('Run', having.map((r, i) => [i, r.label]), 0,
      (i) => update(having[i]))));
  }
  return {start: () => draw(current), again: () => draw(current)};
}

// Charts are made on first use and changed afterwards.
function lazily(make, parent) {
  let change = null;
  return (options) => { if (change) change(options); else change = make(parent, options); };
}

function head() {
  const main = document.getElementById('main');
  const alone = data.runs.length === 1;
  const title = el('h1', {}, alone ? data.runs[0].label : 'Comparison of ' + data.runs.length + ' results');
  main.append(title);
  for (const run of data.runs) {
    const badge = el('span', {class: 'badge' + (run.complete ? '' : ' partial')}, run.extent);
    if (alone) title.append(' ', badge); else main.append(el('h3', {}, run.label, ' ', badge));
    main.append(el('p', {}, run.summary.join(' ')));
  }
  data.cautions.forEach((text) => main.append(el('p', {class: 'caution', role: 'note'}, text)));
  if (alone && single) main.append(facts(sweeps[0]));
  if (data.tables.some((t) => t.id === 'runs')) {
    const table = data.tables.find((t) => t.id === 'runs');
    const shown = table.columns.map((c, i) => i).slice(1)
      .filter((i) => table.rows.some((row) => row[i] !== '' && row[i] !== null));
    const cell = (i, value) => (Array.isArray(value)
      ? interval({v: value[0], lo: value[1], hi: value[2]}, (v) => number(v, table.columns[i].digits))
      : typeof value === 'number' ? number(value, table.columns[i].digits)
      : ['command', 'model_sha256', 'text_sha256', 'text', 'second_text', 'model'].includes(table.columns[i].key)
        ? el('code', {}, value || '') : value || '');
    main.append(el('details', {}, el('summary', {}, 'How this was measured'),
      el('div', {class: 'scroll whole'}, el('table', {class: 'facts-table'},
        alone ? null : el('thead', {}, el('tr', {}, el('th'), ...table.rows.map((r) => el('th', {scope: 'col'}, r[0])))),
        el('tbody', {}, ...shown.map((i) => el('tr', {}, el('th', {scope: 'row'}, table.columns[i].title),
          ...table.rows.map((r) => el('td', {}, cell(i, r[i]))))))))));
  }
}

// A run in four figures.
function facts(run) {
  const r = rows('runs').find((x) => x.run === run.label);
  const layers = ofRun(layerRows, run);
  const cheapest = layers.reduce((a, b) => (b.delta_ppl_pct.v < a.delta_ppl_pct.v ? b : a));
  const fine = (v) => v === 'free' || v === 'better';
  const gates = ofRun(routing, run).filter((g) => g.at === 'own' && fine(g.verdict));
  const generous = gates.length ? gates.reduce((a, b) => (b.pct_linear.v > a.pct_linear.v ? b : a)) : null;
  const fact = (name, value, detail) => el('div', {}, el('dt', {}, name), el('dd', {}, value, el('small', {}, detail)));
  return el('dl', {class: 'facts'},
    fact('Perplexity of the model itself', number(r.baseline_ppl.v, 2),
      r.baseline_ppl.lo === null ? '' : `${number(r.baseline_ppl.lo, 2)} to ${number(r.baseline_ppl.hi, 2)}`),
    fact('Cheapest layer made linear', percent(cheapest.delta_ppl_pct.v), `layer ${cheapest.layer}, every token`),
    fact('Layers free of cost', `${layers.filter((l) => fine(l.verdict)).length} of ${layers.length}`, 'every token linear'),
    fact('Most generous free gate', generous ? number(generous.pct_linear.v, 0) + ' %' : 'none',
      generous ? `of tokens linear: ${generous.router}, layer ${generous.layer}` : 'at its own threshold'));
}

// The gate with the lowest cost at its own threshold, of those `pick` lets through, at each layer.
function bestGate(run, pick) {
  const best = new Map();
  for (const r of ofRun(routing, run)) {
    if (r.at !== 'own' || !pick(r.router)) continue;
    if (!best.has(r.layer) || r.delta_ppl_pct.v < best.get(r.layer).delta_ppl_pct.v) best.set(r.layer, r);
  }
  return [...best.values()].map((r) => point(r.layer, r.delta_ppl_pct, `${r.router}: ${number(r.pct_linear.v, 0)} % linear`));
}

function costSeries() {
  const series = [];
  sweeps.forEach((run, i) => {
    const tag = single ? '' : run.label + ': ';
    const color = (k) => colorName(single ? k : i);
    series.push({name: tag + 'all tokens linear', color: color(0), point: 'circle', points: ofRun(layerRows, run)
      .map((r) => point(r.layer, r.delta_ppl_pct, r.verdict))});
    const paper = bestGate(run, (g) => g !== 'harm');
    const harm = bestGate(run, (g) => g === 'harm');
    if (paper.length) series.push({name: tag + 'the paper’s best gate', color: color(1), point: 'triangle', dash: [5, 4], points: paper});
    if (harm.length) series.push({name: tag + 'harm gate', color: color(2), point: 'rectRot', dash: [2, 3], points: harm});
    if (!single) return;
    unique(ofRun(replacements, run).map((r) => r.replacement)).filter((n) => n !== 'linear').forEach((name, k) => {
      series.push({name, color: color(3 + k), hidden: true, thin: true, points: ofRun(replacements, run)
        .filter((r) => r.replacement === name).map((r) => point(r.layer, r.delta_ppl_pct, `${number(r.flops_pct, 1)} % of the FLOPs`))});
    });
  });
  return series.filter((s) => s.points.length);
}

function costSection() {
  const s = section('cost', 'Cost by layer', 'What each layer costs',
    'Change of perplexity when one layer’s MLP is replaced, all others as they are. Upright lines are 95\u00a0% intervals. ' +
    'Click a point to choose its layer for the sections below.');
  let scale = COST;
  const holder = el('div');
  const chart = lazily(pointChart, holder);
  const options = () => ({
    label: 'Change of perplexity by layer, in percent', series: costSeries(), x: byLayer(),
    y: {title: 'ΔPPL, %', scale: scale || undefined, refs: [0], format: (v, tick) => (tick ? number(v, Math.abs(v) < 1 && v ? 1 : 0, true) : percent(v))},
  });
  s.append(el('div', {class: 'tools'}, segmented('Scale of the cost', [['log', 'Logarithmic'], ['linear', 'Linear']], 'log',
    (key) => { scale = key === 'log' ? COST : null; chart(options()); })), holder);
  chart(options());
  s.append(figures('layers'), replacements.length ? el('details', {}, el('summary', {}, 'Other replacements as a table'), tableElement('replacements')) : '');
}

function verdictSection() {
  const s = section('verdicts', 'Verdicts', 'What can be said for sure',
    'Each mark is one layer, its p-value corrected for the number of layers tried (Holm).');
  s.append(el('ul', {class: 'key'},
    ...[['better', 'better than the model itself'], ['free', 'free: interval below +1 %'], ['undecided', 'undecided'], ['costs', 'costs']]
      .map(([v, text]) => el('li', {}, verdictMark(v), ' ' + text))));
  const layers = unique(layerRows.map((r) => r.layer)).sort((a, b) => a - b);
  const body = el('tbody');
  for (const run of sweeps) {
    const lines = [['all tokens linear', ofRun(layerRows, run)]];
    const own = ofRun(routing, run).filter((r) => r.at === 'own' && r.verdict);
    unique(own.map((r) => r.router)).forEach((g) => lines.push([g + ' gate', own.filter((r) => r.router === g)]));
    if (!single) body.append(el('tr', {}, el('th', {scope: 'rowgroup', class: 'text', colspan: layers.length + 1}, run.label)));
    for (const [name, list] of lines) {
      body.append(el('tr', {}, el('th', {scope: 'row', class: 'text'}, name), ...layers.map((layer) => {
        const r = list.find((x) => x.layer === layer);
        if (!r) return el('td', {}, '');
        const text = `layer ${layer}: ${r.verdict}, ${interval(r.delta_ppl_pct, percent)}`;
        return el('td', {title: text, 'aria-label': text}, verdictMark(r.verdict));
      })));
    }
  }
  s.append(el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Verdict by layer'},
    el('table', {class: 'verdicts'}, el('thead', {}, el('tr', {}, el('th', {scope: 'col', class: 'text'}, 'layer'),
      ...layers.map((l) => el('th', {scope: 'col'}, String(l))))), body)), figures('verdicts'));
}

function fitSection() {
  const s = section('fit', 'Fit and folding', 'How linear the MLP is',
    'R² says how much of the MLP output’s variance a linear map explains; it need not agree with the cost. ' +
    'A few sink tokens with enormous outputs can carry most of the variance, so both are shown.');
  const pair = el('div', {class: 'pair'});
  s.append(pair);
  const left = el('div', {}, el('h3', {}, 'R² by layer'));
  pair.append(left);
  const series = sweeps.flatMap((run, i) => [
    {name: (single ? '' : run.label + ': ') + 'R²', color: colorName(single ? 0 : i), point: 'circle',
      points: ofRun(layerRows, run).filter((r) => r.r2).map((r) => point(r.layer, r.r2))},
    {name: (single ? '' : run.label + ': ') + 'without sinks', color: colorName(single ? 1 : i), point: 'triangle', dash: [5, 4],
      points: ofRun(layerRows, run).filter((r) => r.r2_without_sinks).map((r) => point(r.layer, r.r2_without_sinks))},
  ]);
  // A fit can be far worse than the mean on some layers; the axis does not follow it down.
  pointChart(left, {label: 'R² by layer', small: true, series, x: byLayer(),
    y: {title: 'R²', min: Math.max(-0.5, bounds(series.flatMap((x) => x.points.map((p) => ({v: p.y}))), 0, 1, 0.1).min), max: 1, refs: [0], format: (v, tick) => number(v, tick ? 1 : 3)}});
  if (folding.length) {
    const right = el('div', {}, el('h3', {}, 'Neuron folding'));
    pair.append(right);
    const run = perRun(right, folding, (chosen) => chart(chosen));
    const holder = el('div');
    right.append(holder);
    const draw = lazily(pointChart, holder);
    const chart = (chosen) => {
      const list = ofRun(folding, chosen);
      draw({label: 'Cost of neuron folding by layer', small: true, x: byLayer(list),
        series: unique(list.map((r) => r.keep)).map((keep, i) => ({name: `${number(keep, 0)} % of neurons kept`, color: colorName(i),
          points: list.filter((r) => r.keep === keep).map((r) => point(r.layer, r.delta_ppl_pct, `${number(r.flops_pct, 0)} % of the FLOPs`))})),
        y: {title: 'ΔPPL, %', scale: COST, refs: [0], format: (v, tick) => (tick ? number(v, Math.abs(v) < 1 && v ? 1 : 0, true) : percent(v))}});
    };
    run.start();
    right.append(figures('folding') || '');
  }
}

// The colour of a router, the same in every chart.
function routerStyle(router, routers) {
  if (router === 'random') return {color: css('--s6'), dash: [6, 4], point: 'crossRot'};
  if (router === 'oracle') return {color: css('--ink'), dash: [2, 3], point: 'star'};
  const k = router === 'harm' ? 2 : [0, 1, 3, 4, 5][routers.filter((r) => !['harm', 'random', 'oracle'].includes(r)).indexOf(router) % 5];
  return {color: colorName(k), point: POINTS[k]};
}

function routingSection() {
  if (!routing.length) return;
  const s = section('routing', 'Routing', 'What a gate buys',
    'Tokens go through the linear map or the full MLP. A gate is worth something where it lies below random ' +
    'routing at the same share of linear tokens; the oracle, which knows each token’s true error, is what it could reach.');
  const box = el('div');
  const run = perRun(s, routing, (chosen) => draw(chosen));
  s.append(box);
  const layerChoice = el('span');
  const pair = el('div', {class: 'pair'});
  const left = el('div', {}), right = el('div', {});
  const leftTitle = el('h3'), rightTitle = el('h3');
  const leftBox = el('div'), rightBox = el('div'), rightTools = el('div', {class: 'tools'});
  left.append(leftTitle, el('div', {class: 'tools'}, layerChoice), leftBox);
  right.append(rightTitle, rightTools, rightBox);
  pair.append(left, right);
  box.append(pair);
  const leftChart = lazily(pointChart, leftBox), rightChart = lazily(pointChart, rightBox);
  let share = null, current = null;

  function draw(chosen) {
    current = chosen;
    const list = ofRun(routing, chosen);
    const layers = unique(list.map((r) => r.layer));
    const routers = unique(list.map((r) => r.router));
    const layer = layers.includes(state.layer) ? state.layer
      : layers.reduce((a, b) => (Math.abs(b - state.layer) < Math.abs(a - state.layer) ? b : a));
    layerChoice.replaceChildren(choice('Layer', layers.map((l) => [l, l]), layer, (l) => state.set('layer', Number(l))));
    const all = ofRun(layerRows, chosen).find((r) => r.layer === layer).delta_ppl_pct;
    const big = all.v > 100;
    leftTitle.textContent = 'Cost against share';
    leftChart({label: `Cost against the share of linear tokens, layer ${layer}`, x: {title: '% of tokens linear', min: 0, max: 100},
      series: routers.map((router) => {
        const points = list.filter((r) => r.router === router && r.layer === layer).sort((a, b) => a.pct_linear.v - b.pct_linear.v)
          .map((r) => ({...point(r.pct_linear.v, r.delta_ppl_pct, r.at === 'own' ? 'at its own threshold' : 'calibrated to ' + r.at), big: r.at === 'own'}));
        return {name: router, ...routerStyle(router, routers), whisker: 1, whiskerAlpha: 0.3,
          points: points.length ? [{x: 0, y: 0, end: true}, ...points, {x: 100, y: all.v, end: true}] : []};
      }).filter((x) => x.points.length),
      y: {title: 'ΔPPL, %', scale: big ? COST : undefined, refs: [0], format: (v, tick) => (tick ? number(v, Math.abs(v) < 1 && v ? 1 : 0, true) : percent(v))}});
    const shares = unique(list.map((r) => r.at));
    if (!shares.includes(share)) share = shares.find((x) => x === '50 %') || shares[0];
    rightTools.replaceChildren(choice('Threshold', shares.map((x) => [x, x === 'own' ? 'each gate’s own' : `for ${x} linear`]), share,
      (value) => { share = value; draw(current); }));
    rightTitle.textContent = 'The same by layer';
    rightChart({label: `Cost by layer, threshold ${share}`, x: byLayer(list),
      series: routers.map((router) => ({name: router, ...routerStyle(router, routers), whisker: 1, whiskerAlpha: 0.3,
        points: list.filter((r) => r.router === router && r.at === share)
          .map((r) => point(r.layer, r.delta_ppl_pct, `${number(r.pct_linear.v, 0)} % linear`))})).filter((x) => x.points.length),
      y: {title: 'ΔPPL, %', scale: COST, refs: [0], format: (v, tick) => (tick ? number(v, Math.abs(v) < 1 && v ? 1 : 0, true) : percent(v))}});
  }
  run.start();
  state.on((key) => { if (key === 'layer') run.again(); });

  const aucs = routing.filter((r) => r.auc);
  if (aucs.length) {
    s.append(el('h3', {}, 'How well gates tell harmless tokens apart'),
      el('p', {class: 'note'}, 'AUC on test tokens: the chance that a gate ranks a token with δ at or below the median above one with a larger δ. 0.5 is a coin.'));
    const holder = el('div');
    const aucRun = perRun(s, aucs, (chosen) => {
      const list = ofRun(aucs, chosen);
      const routers = unique(list.map((r) => r.router));
      chart({label: 'AUC of the gates by layer', small: true, x: byLayer(list),
        series: routers.map((router) => ({name: router, ...routerStyle(router, routers), line: true,
          points: list.filter((r) => r.router === router).map((r) => point(r.layer, r.auc))})),
        y: {title: 'AUC', ...bounds(list.map((r) => r.auc), 0.45, 0.65, 0.05), refs: [0.5], format: (v, tick) => number(v, tick ? 2 : 3)}});
    });
    const chart = lazily(pointChart, holder);
    s.append(holder);
    aucRun.start();
  }
  s.append(figures('routing'));
}

function deltaSection() {
  const deltas = rows('delta');
  const quantiles = deltas.filter((r) => r.p5 !== null);
  if (!quantiles.length) return;
  const s = section('delta', 'Token by token', 'Who pays',
    'δ is the change of one token’s loss when the layer is linear: above 0 the token pays, below it gains. ' +
    'Thick lines hold the middle half of the tokens, thin ones 90\u00a0%.');
  const holder = el('div');
  const chart = lazily(pointChart, holder);
  const run = perRun(s, quantiles, (chosen) => {
    const list = ofRun(quantiles, chosen);
    chart({label: 'Quantiles of δ by layer', x: {...byLayer(list), together: true},
      series: [
        {name: '5 to 95 %', color: colorName(0), line: false, whisker: 2, whiskerAlpha: 0.45, radius: 0, point: 'circle',
          points: list.map((r) => ({x: r.layer, y: r.p50, lo: r.p5, hi: r.p95, note: '5 to 95 %'}))},
        {name: 'middle half, and median', color: colorName(0), line: false, whisker: 7, whiskerAlpha: 0.6, point: 'circle',
          points: list.map((r) => ({x: r.layer, y: r.p50, lo: r.p25, hi: r.p75, note: 'middle half'}))},
        {name: 'mean', color: colorName(1), line: false, whisker: 0, point: 'rectRot',
          points: list.map((r) => ({x: r.layer, y: r.mean, note: `worst 1 % of tokens: ${number(r.harm_1, 0)} % of the harm`}))},
      ],
      y: {title: 'δ, nats', scale: NATS, refs: [0], format: (v, tick) => number(v, tick && Math.abs(v) >= 1 ? 0 : tick ? 2 : 3, true)}});
  });
  s.append(holder);
  run.start();
  if (data.maps.length) histogram(s);
  s.append(figures('delta'));
}

// δ of all shown tokens at the chosen layer.
function histogram(s) {
  const title = el('h3'), holder = el('div');
  s.append(title, holder);
  const draw = lazily(barChart, holder);
  const map = new TokenMap(data.maps[0]);
  const update = () => {
    let l = map.layers.indexOf(state.layer);
    if (l < 0 || !map.delta(l)) l = map.layers.findIndex((x, i) => map.delta(i));
    if (l < 0) return;
    title.textContent = `Distribution of δ at layer ${map.layers[l]}` + (data.maps.length > 1 ? `, ${map.packed.run}` : '');
    const step = 0.16, half = 20;  // bins of equal width on the logarithmic axis
    const counts = new Array(2 * half + 1).fill(0);
    for (const d of map.delta(l)) {
      if (Number.isFinite(d)) ++counts[half + Math.max(-half, Math.min(half, Math.round(NATS.to(d) / step)))];
    }
    const total = counts.reduce((a, b) => a + b, 0) || 1;
    draw({label: title.textContent, small: true, tight: true, xTitle: 'δ, nats (logarithmic on both sides of 0)', yTitle: '% of tokens',
      format: (v) => number(v, 0), bars: counts.map((count, i) => {
        const at = Number(NATS.from((i - half) * step).toPrecision(2));
        return {x: number(at, Math.abs(at) >= 1 ? 1 : 2, true) || '0', y: 100 * count / total, color: i < half ? '--s0' : i > half ? '--s1' : '--s6',
          note: `around ${number(at, 3, true)} nats: ${number(100 * count / total, 1)} % of tokens`};
      })});
  };
  state.on((key) => { if (key === 'layer') update(); });
  update();
}

function theme() {
  const root = document.documentElement;
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;  // what the reader asked for, if anything
  const apply = (dark) => { root.dataset.theme = dark ? 'dark' : 'light'; redrawAll(); };
  const now = () => (chosen === null ? system.matches : chosen);
  root.dataset.theme = now() ? 'dark' : 'light';
  system.addEventListener('change', () => apply(now()));
  document.getElementById('theme').addEventListener('click', () => { chosen = !now(); apply(chosen); });
  // Paper is white.
  addEventListener('beforeprint', () => apply(false));
  addEventListener('afterprint', () => apply(now()));
}

theme();
document.getElementById('version').textContent = data.halflin;
if (!layerRows.length) state.layer = (rows('probes')[0] || {layer: null}).layer;
if (layerRows.length) {
  const first = rows('layers').reduce((a, b) => (b.delta_ppl_pct.v < a.delta_ppl_pct.v ? b : a));
  state.layer = first.layer;
}
head();
if (layerRows.length) {
  // The order of the page.
  costSection();
  tokenSection();
  verdictSection();
  routingSection();
  deltaSection();
  fitSection();
}
paretoSection();
timingSection();
analysisSections();
state.on((key) => { if (key === 'layer') drawn.forEach((chart) => chart.mark()); });
// For tests: when the page could be used, in milliseconds from the start of its navigation.
document.documentElement.dataset.after = performance.now();
document.documentElement.dataset.ready = 'yes';

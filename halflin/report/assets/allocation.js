// What `halflin allocate` and `halflin bench --allocation` add: all layers together, and the clock.
'use strict';

function paretoSection() {
  const list = rows('pareto');
  if (!list.length) return;
  const s = section('pareto', 'Budget', 'All layers together',
    'Each point is the whole model at one price, on the test text: what it saves and what that costs. ' +
    'The price is worth something where it lies below the controls at the same FLOPs. Upright lines are 95\u00a0% intervals.');
  const names = unique(list.map((r) => r.run));
  const holder = el('div'), routed = el('div');
  const chart = lazily(pointChart, holder), byLayerChart = lazily(pointChart, routed);
  const draw = (name) => {
    const mine = list.filter((r) => r.run === name);
    chart({label: 'Change of perplexity against FLOPs saved', x: {title: '% of all FLOPs saved'},
      series: unique(mine.map((r) => r.router)).map((router, i) => ({name: router, color: seriesColor(i), whisker: 1,
        points: mine.filter((r) => r.router === router).sort((a, b) => a.flops_saved_pct - b.flops_saved_pct)
          .map((r) => ({...point(r.flops_saved_pct, r.delta_ppl_pct, `price ${number(r.price, 3)}`), big: i === 0 && r.at === 'budget'}))})),
      y: {title: 'ΔPPL, %', scale: COST, refs: [0], format: (v, tick) => (tick ? number(v, Math.abs(v) < 1 && v ? 1 : 0, true) : percent(v))}});
    const paths = rows('allocated').filter((r) => r.run === name);
    const label = (r) => r.path + (r.kept === null ? '' : ` ${r.kept}`);
    byLayerChart({label: 'Tokens that take a cheap path, by layer', small: true, x: {...byLayer(paths), together: true},
      series: unique(paths.map(label)).map((path, i) => ({name: path, color: seriesColor(i),
        points: paths.filter((r) => label(r) === path).map((r) => ({x: r.layer, y: r.rate_pct}))})),
      y: {title: '% of tokens', min: 0, max: 100, format: (v) => number(v, 0)}});
  };
  if (names.length > 1) {
    s.append(el('div', {class: 'tools'}, choice('Allocation', names.map((n) => [n, n]), names[0], draw)));
  }
  s.append(holder, figures('pareto'), el('h3', {}, 'What each layer gives'), routed, figures('allocated'));
  draw(names[0]);
}

function timingSection() {
  if (!rows('timing').length) return;
  const s = section('timing', 'Clock', 'By the clock',
    'The same model with and without the allocation, in turns in one run on one machine.');
  s.append(tableElement('timing'));
}

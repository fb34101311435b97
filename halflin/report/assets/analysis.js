// What `halflin analyze` adds: the paper's statements, token or context, lists, clusters, extremes.
'use strict';

const hasFigure = (cell) => cell !== null && typeof cell === 'object';
const hasTable = (id) => data.tables.some((t) => t.id === id);

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? ' ' : '. ');

// Sections that show one layer at a time let it be chosen where they are.
function layerChoice(layers, layer) {
  return choice('Layer', layers.map((l) => [l, l]), layer, (l) => state.set('layer', Number(l)));
}

function nearest(layers) {
  return layers.reduce((a, b) => (Math.abs(b - state.layer) < Math.abs(a - state.layer) ? b : a));
}

// Lines by layer, one for each value of a column.
function linesByLayer(parent, id, group, figure, options) {
  const list = rows(id).filter((r) => hasFigure(r[figure]) && (!options.pick || options.pick(r)));
  if (!list.length) return;
  const holder = el('div');
  const draw = lazily(pointChart, holder);
  const run = perRun(parent, list, (chosen) => {
    const mine = ofRun(list, chosen);
    const groups = unique(mine.map((r) => r[group]));
    const series = groups.map((g, i) => ({
      name: (options.names || {})[g] || g, hidden: (options.hidden || []).includes(g), color: seriesColor(i),
      points: mine.filter((r) => r[group] === g).map((r) => point(r.layer, r[figure], options.note && options.note(r))),
    }));
    if (options.extra) series.push(...options.extra(mine));
    draw({label: options.label, small: true, x: byLayer(mine), series,
      y: {title: options.title, refs: [options.ref ?? 0], format: options.format,
        ...(options.ends ? bounds(mine.map((r) => r[figure]), ...options.ends) : {})}});
  });
  parent.append(holder);
  run.start();
}

function statementSection() {
  const s = section('statements', 'Statements', 'The paper’s statements, held against this text',
    'Each line is decided by its interval alone: it holds, it does not, or the text is too small to say. ' +
    'The figure is the mean over the measured layers.');
  const list = rows('statements');
  for (const label of unique(list.map((r) => r.run))) {
    if (data.runs.length > 1) s.append(el('h3', {}, label));
    s.append(el('ul', {class: 'statements'}, ...list.filter((r) => r.run === label).map((r) => {
      const measured = hasFigure(r.figure) && r.figure.v !== null;
      return el('li', {},
        el('span', {class: 'verdict'}, verdictMark(r.verdict), ' ' + r.verdict),
        el('div', {}, el('strong', {}, r.statement),
          el('p', {class: 'note'}, sentence(measured
            ? `${r.measured}: ${interval(r.figure, (v) => number(v, Number.isInteger(v) ? 0 : 3))}` +
              ` (${r.for} of ${r.layers} layers for, ${r.against} against)` : r.measured),
          r.published && r.published !== 'none' ? sentence('The paper: ' + r.published) : '',
          r.note && measured ? sentence(r.note) : '')));
    })));
  }
  s.append(figures('statements'));
}

function contextSection() {
  const s = section('context', 'Token or context', 'Token or context?',
    'What a gate can tell from the current token’s part of the MLP’s input, and from the rest.');
  const pair = el('div', {class: 'pair'});
  s.append(pair);
  const left = el('div', {}, el('h3', {}, 'AUC of gates on parts of the input'));
  const right = el('div', {}, el('h3', {}, 'Share of δ’s variance they predict'));
  pair.append(left, right);
  linesByLayer(left, 'probes', 'input', 'auc', {
    label: 'AUC of gates on parts of the input, by layer', title: 'AUC', ref: 0.5, ends: [0.45, 0.65, 0.05],
    pick: (r) => !r.input.includes(' minus '), hidden: ['raw token', 'raw context', 'position'],
    format: (v, tick) => number(v, tick ? 2 : 3)});
  linesByLayer(right, 'explained', 'by', 'r2', {
    label: 'Held-out R² of δ by layer, percent', title: 'R², %', pick: (r) => !r.by.startsWith('surface'),
    format: (v, tick) => number(v, tick ? 0 : 2, true) + (tick ? '' : ' %')});
  s.append(figures('probes'));
  for (const [id, title] of [['explained', 'Predicted variance'], ['parts', 'Sizes of the parts'], ['stability', 'The gate elsewhere'], ['surface', 'Surface features']]) {
    if (hasTable(id)) s.append(el('details', {}, el('summary', {}, title), tableElement(id)));
  }
}

function listSection() {
  if (!hasTable('lists')) return;
  const s = section('lists', 'Lists', 'Does a token’s need carry over to another text?',
    'Correlation of the tokens’ mean δ on two texts, beside the ceiling that the number of tokens allows: ' +
    'a list that does not agree with itself cannot agree with another.');
  linesByLayer(s, 'lists', 'by', 'correlation', {
    label: 'Correlation of mean δ of tokens on two texts, by layer', title: 'r',
    names: {input: 'by the token that goes in', target: 'by the token to be predicted'},
    note: (r) => `${r.shared} tokens in both texts`, ends: [-0.2, 1, 0.2],
    extra: (mine) => ['input', 'target'].map((by, i) => ({name: `ceiling, ${by}`, color: seriesColor(i), line: true, dash: [4, 4], thin: true,
      whisker: 0, radius: 0, points: mine.filter((r) => r.by === by && r.ceiling !== null).map((r) => ({x: r.layer, y: r.ceiling}))})),
    format: (v, tick) => number(v, tick ? 1 : 3, true)});
  s.append(figures('lists'));
  if (hasTable('listed')) s.append(el('details', {}, el('summary', {}, 'Tokens on the lists'), tableElement('listed')));
}

function clusterSection() {
  const all = rows('clusters');
  if (!all.length && !hasTable('harm')) return;
  const s = section('clusters', 'Clusters', 'Is there a kind of input that needs the MLP?',
    'Inputs in clusters (k-means). A kind that always needs the MLP would lie at 0 %, one that never does at 100 %.');
  const judged = all.filter((r) => hasFigure(r.linear_ok));
  if (judged.length) {
    const tools = el('div', {class: 'tools'}), holder = el('div');
    const draw = lazily(pointChart, holder);
    const run = perRun(s, judged, (chosen) => {
      const mine = ofRun(judged, chosen);
      const layers = unique(mine.map((r) => r.layer));
      const layer = nearest(layers);
      tools.replaceChildren(layerChoice(layers, layer));
      const sorted = mine.filter((r) => r.layer === layer).sort((a, b) => a.linear_ok.v - b.linear_ok.v);
      draw({label: `Share of tokens for which linear is fine, by cluster, layer ${layer}`, small: true,
        series: [{name: 'cluster', line: false, points: sorted.map((r, i) => point(i + 1, r.linear_ok, `cluster ${r.cluster}: ${r.tokens} test tokens`))}],
        x: {title: 'clusters, in order', unit: 'place', min: 0, max: sorted.length + 1},
        y: {title: 'linear is fine, %', min: 0, max: 100, refs: [50], format: (v, tick) => number(v, tick ? 0 : 1) + (tick ? '' : ' %')}});
    });
    s.append(tools, holder);
    run.start();
    state.on((key) => { if (key === 'layer') run.again(); });
  }
  s.append(figures('clusters') || '');
  if (hasTable('harm')) s.append(el('details', {}, el('summary', {}, 'The shape of δ on both texts'), tableElement('harm')));
}

function extremeSection() {
  const all = rows('extremes');
  if (!all.length) return;
  const s = section('extremes', 'Extremes', 'Where the gate is surest',
    'The test tokens with the highest and the lowest score of the gate on the whole input, in their sentences.');
  const tools = el('div', {class: 'tools'}), box = el('div', {class: 'pair'});
  const run = perRun(s, all, (chosen) => {
    const mine = ofRun(all, chosen);
    const layers = unique(mine.map((r) => r.layer));
    const layer = nearest(layers);
    tools.replaceChildren(layerChoice(layers, layer));
    box.replaceChildren(...unique(mine.map((r) => r.end)).map((end, i) => el('div', {}, el('h3', {}, 'Surest of ' + end),
      el('ol', {class: 'sentences'}, ...mine.filter((r) => r.layer === layer && r.end === end).map((r) =>
        el('li', {}, el('span', {class: 'note'}, number(r.score, 2, true)), ' ', '…' + r.before,
          el('mark', {class: i === 0 ? 'b3' : 'o3'}, r.token), r.after + '…'))))));
  });
  s.append(tools, box);
  run.start();
  state.on((key) => { if (key === 'layer') run.again(); });
}

function analysisSections() {
  if (!hasTable('statements')) return;
  statementSection();
  if (hasTable('probes')) contextSection();
  listSection();
  clusterSection();
  extremeSection();
}

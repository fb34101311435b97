// The token map: a test text, each token coloured by what the linear map does to it at one layer.
'use strict';

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

let halves = null;  // every binary16 as a number
function f16(text) {
  if (!halves) {
    halves = new Float32Array(65536);
    for (let h = 0; h < 65536; ++h) {
      const sign = h >> 15 ? -1 : 1, exponent = h >> 10 & 31, mantissa = h & 1023;
      halves[h] = exponent === 31 ? (mantissa ? NaN : sign * Infinity)
        : exponent === 0 ? sign * mantissa * 2 ** -24
        : sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
    }
  }
  return Float32Array.from(new Uint16Array(bytesOf(text).buffer), (h) => halves[h]);
}

const FEWEST = 512;  // tokens of one view; short sequences are shown together

// A run's token map, unpacked piece by piece when it is needed.
class TokenMap {
  constructor(packed) {
    this.packed = packed;
    this.layers = packed.layers;
    this.cache = new Map();
    const piece = bytesOf(packed.piece).buffer;
    this.piece = packed.wide ? new Uint32Array(piece) : new Uint16Array(piece);
    this.starts = new Set(new Uint32Array(bytesOf(packed.starts).buffer));
    this.loss = f16(packed.loss);
    this.views = [0];  // where each view starts
    for (const start of this.starts) {
      if (start - this.views[this.views.length - 1] >= FEWEST) this.views.push(start);
    }
  }
  get(key, make) {
    if (!this.cache.has(key)) this.cache.set(key, make());
    return this.cache.get(key);
  }
  delta(l) { return this.packed.delta[l] && this.get('d' + l, () => f16(this.packed.delta[l])); }
  error(l) { return this.packed.error[l] && this.get('e' + l, () => f16(this.packed.error[l])); }
  gate(g, l) {
    const packed = this.packed.gates[g].layers[l];
    return packed && this.get(`g${g}.${l}`, () => bytesOf(packed.bytes));
  }
  score(g, l, t) {  // the middle of what the byte stands for
    const byte = this.gate(g, l)[t];
    const {lo, threshold, hi} = this.packed.gates[g].layers[l];
    return byte > 127 ? threshold + (hi - threshold) * (byte - 127.5) / 128
      : threshold - (threshold - lo) * (127.5 - byte) / 128;
  }
  text(t) { return this.packed.pieces[this.piece[t]]; }
  id(t) { return this.packed.ids[this.piece[t]]; }
  range(view) { return [this.views[view], this.views[view + 1] ?? this.packed.tokens]; }
}

const DELTA_STEPS = [0.02, 0.1, 0.3, 1];
const SHARES = [0.5, 0.75, 0.9, 0.97, 0.99];

function signedClass(magnitude, negative) {
  let step = 0;
  while (step < DELTA_STEPS.length && magnitude >= DELTA_STEPS[step]) ++step;
  return step === 0 ? '' : (negative ? 'b' : 'o') + step;
}

// For one way of colouring at one layer: class(t) and the legend. null where there are no figures.
function colouring(map, kind, l) {
  const swatchOf = (name, text) => el('span', {class: name || false}, text);
  if (kind === 'delta') {
    const delta = map.delta(l);
    return delta && {
      class: (t) => signedClass(Math.abs(delta[t]), delta[t] < 0),
      legend: [el('em', {}, 'linear map better (underlined)'),
        ...DELTA_STEPS.slice().reverse().map((s, i) => swatchOf('b' + (4 - i), MINUS + s)),
        swatchOf('', '0'), ...DELTA_STEPS.map((s, i) => swatchOf('o' + (i + 1), '+' + s)),
        el('em', {}, 'full MLP needed · nats, from … on')],
    };
  }
  if (kind === 'error') {
    const error = map.error(l);
    if (!error) return null;
    const cuts = map.get('cuts' + l, () => {
      const sorted = Float32Array.from(error).sort();
      return SHARES.map((s) => sorted[Math.min(sorted.length - 1, Math.floor(s * sorted.length))]);
    });
    return {
      class: (t) => { const step = cuts.filter((c) => error[t] >= c).length; return step ? 'e' + step : ''; },
      legend: [el('em', {}, '‖g(x) − f(x)‖² at least'), ...cuts.map((c, i) =>
        swatchOf('e' + (i + 1), (10 ** c).toPrecision(2).replace('e+', 'e'))),
      el('em', {}, 'the top 50, 25, 10, 3, 1 % of tokens')],
    };
  }
  const [what, g] = kind.split(':');
  const bytes = map.gate(Number(g), l);
  if (!bytes) return null;
  if (what === 'choice') {
    return {
      class: (t) => (bytes[t] > 127 ? 'b2' : 'o1'),
      legend: [swatchOf('b2', 'linear map'), swatchOf('o1', 'full MLP')],
    };
  }
  return {
    class: (t) => (bytes[t] > 127 ? 'b' + (1 + (bytes[t] - 128 >> 5)) : 'o' + (1 + (127 - bytes[t] >> 5))),
    legend: [el('em', {}, 'surer of the full MLP'), ...[4, 3, 2, 1].map((s) => swatchOf('o' + s, '·')),
      ...[1, 2, 3, 4].map((s) => swatchOf('b' + s, '·')), el('em', {}, 'surer of the linear map (underlined)')],
  };
}

// White space at an edge made visible where the token is named.
const quoted = (text) => text.replace(/ /g, '·').replace(/\n/g, '↵').replace(/\t/g, '⇥');

function tokenSection() {
  if (data.maps.length === 0) return;
  const s = section('tokens', 'Token map', 'Token map',
    'The test text itself. Colour says what happens to the loss of the prediction after each token when ' +
    'this layer’s MLP is replaced by its linear map. Hover, tap, or use the arrow keys: left and right move ' +
    'through the text, up and down through the layers.');
  const maps = data.maps.map((packed) => new TokenMap(packed));
  let map = maps[0], view = 0, kind = 'delta', at = null, spans = [];

  const slider = el('input', {type: 'range', id: 'layer', 'aria-label': 'Layer', min: 0, step: 1});
  const sliderOut = el('output', {for: 'layer'});
  const previous = el('button', {type: 'button', class: 'step', 'aria-label': 'Previous part of the text'}, '‹');
  const next = el('button', {type: 'button', class: 'step', 'aria-label': 'Next part of the text'}, '›');
  const where = el('select', {'aria-label': 'Part of the text'});
  const kinds = el('select', {'aria-label': 'Colour by'});
  const text = el('div', {class: 'text-view', tabindex: 0, role: 'listbox', 'aria-label': 'Tokens', id: 'text'});
  const scale = el('div', {class: 'scale', 'aria-label': 'What the colours mean'});
  const note = el('p', {class: 'note'});
  const inspector = el('aside', {class: 'inspector', 'aria-label': 'The token in every layer', 'aria-live': 'polite'});
  const tools = el('div', {class: 'tools'});
  if (maps.length > 1) {
    tools.append(choice('Run', maps.map((m, i) => [i, m.packed.run]), 0, (i) => { map = maps[i]; view = 0; at = null; newMap(); }));
  }
  tools.append(el('label', {class: 'slider'}, 'Layer', slider, sliderOut),
    el('label', {class: 'choice'}, 'Colour by', kinds),
    el('span', {class: 'choice'}, previous, where, next));
  const details = inspectorParts(inspector);
  s.append(tools, scale, note, el('div', {class: 'map'}, text, inspector));

  const layerIndex = () => {  // the measured layer nearest to the chosen one
    let best = 0;
    map.layers.forEach((layer, i) => {
      if (Math.abs(layer - state.layer) < Math.abs(map.layers[best] - state.layer)) best = i;
    });
    return best;
  };

  function newMap() {
    slider.max = map.layers.length - 1;
    kinds.replaceChildren(el('option', {value: 'delta'}, 'δ, change of loss'),
      el('option', {value: 'error'}, 'error energy'),
      ...map.packed.gates.map((g, i) => el('option', {value: 'choice:' + i}, `${g.name} gate’s choice`)),
      ...map.packed.gates.map((g, i) => el('option', {value: 'score:' + i}, `${g.name} gate’s score`)));
    kind = 'delta';
    where.replaceChildren(...map.views.map((start, i) =>
      el('option', {value: i}, `tokens ${number(start, 0)}–${number(map.range(i)[1] - 1, 0)}`)));
    const notes = [];
    if (!map.packed.known) notes.push('The model was not at hand when this page was written: tokens are shown as ids.');
    if (map.packed.tokens < map.packed.of) {
      notes.push(`The first ${number(map.packed.tokens, 0)} of ${number(map.packed.of, 0)} test tokens, to keep the page small.`);
    }
    note.textContent = notes.join(' ');
    note.hidden = notes.length === 0;
    showView();
  }

  function showView() {
    const [begin, end] = map.range(view);
    where.value = view;
    previous.disabled = view === 0;
    next.disabled = view === map.views.length - 1;
    const parts = document.createDocumentFragment();
    spans = [];
    for (let t = begin; t < end; ++t) {
      if (t > begin && map.starts.has(t)) parts.append(el('span', {class: 'gap', 'aria-hidden': 'true'}));
      const span = document.createElement('span');
      span.id = 'token-' + t;
      span.setAttribute('role', 'option');
      const piece = map.text(t);
      if (piece.includes('\n')) {  // line ends keep a mark, so that they can be seen and pointed at
        piece.split('\n').forEach((part, i) => {
          if (i) span.append(el('span', {class: 'nl', 'aria-hidden': 'true'}, '↵'), '\n');
          span.append(part);
        });
      } else {
        span.textContent = piece;
      }
      spans.push(span);
      parts.append(span);
    }
    text.replaceChildren(parts);
    text.scrollTop = 0;
    paint();
    if (at === null || at < begin || at >= end) at = null;
    show(at ?? mostHarmed(begin, end), at !== null);
  }

  // What the inspector shows before anything was pointed at.
  function mostHarmed(begin, end) {
    const delta = map.delta(layerIndex());
    let best = begin;
    for (let t = begin; delta && t < end; ++t) if (delta[t] > (delta[best] || 0)) best = t;
    return best;
  }

  function paint() {
    const l = layerIndex();
    const [begin] = map.range(view);
    slider.value = l;
    sliderOut.textContent = 'layer ' + map.layers[l];
    slider.setAttribute('aria-valuetext', 'layer ' + map.layers[l]);
    const colours = colouring(map, kind, l);
    spans.forEach((span, i) => {
      span.className = ('t ' + (colours ? colours.class(begin + i) : '')).trim() + (begin + i === at ? ' at' : '');
    });
    scale.replaceChildren(...(colours ? colours.legend : [el('em', {}, 'No such figures at this layer.')]));
  }

  function show(t, mark) {
    const [begin] = map.range(view);
    if (mark) {
      if (at !== null && spans[at - begin]) {
        spans[at - begin].classList.remove('at');
        spans[at - begin].removeAttribute('aria-selected');
      }
      at = t;
      spans[t - begin].classList.add('at');
      spans[t - begin].setAttribute('aria-selected', 'true');
      text.setAttribute('aria-activedescendant', spans[t - begin].id);
      text.parentNode.classList.add('chosen');
    }
    details(map, t, layerIndex());
  }

  const tokenOf = (event) => {
    const span = event.target.closest('.t');
    return span ? Number(span.id.slice(6)) : null;
  };
  text.addEventListener('mouseover', (event) => { const t = tokenOf(event); if (t !== null) show(t, true); });
  text.addEventListener('click', (event) => { const t = tokenOf(event); if (t !== null) show(t, true); });
  text.addEventListener('focus', () => { if (at === null) show(map.range(view)[0], true); });
  text.addEventListener('keydown', (event) => {
    const [begin, end] = map.range(view);
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    const layers = {ArrowUp: 1, ArrowDown: -1}[event.key];
    if (step) {
      show(Math.min(end - 1, Math.max(begin, (at ?? begin) + step)), true);
      spans[at - begin].scrollIntoView({block: 'nearest'});
    } else if (layers) {
      chooseLayer(layerIndex() + layers);
    } else {
      return;
    }
    event.preventDefault();
  });
  const chooseLayer = (l) => state.set('layer', map.layers[Math.min(map.layers.length - 1, Math.max(0, l))]);
  slider.addEventListener('input', () => chooseLayer(Number(slider.value)));
  kinds.addEventListener('change', () => { kind = kinds.value; paint(); });
  where.addEventListener('change', () => { view = Number(where.value); showView(); });
  previous.addEventListener('click', () => { --view; showView(); });
  next.addEventListener('click', () => { ++view; showView(); });
  state.on((key) => {
    if (key !== 'layer') return;
    paint();
    show(at ?? mostHarmed(...map.range(view)), at !== null);
  });
  newMap();
}

// The panel beside the text: one token, every layer.
function inspectorParts(inspector) {
  const name = el('h3');
  const facts = el('p', {class: 'note'});
  const chartBox = el('div');
  const table = el('table');
  inspector.append(name, facts, chartBox, table);
  const scale = symlog(0.1);
  const signed = (v) => (Number.isFinite(v) ? number(v, 3, true) : '–');
  let draw = null;

  return (map, t, here) => {
    name.replaceChildren(el('span', {class: 'quote'}, '“'), quoted(map.text(t)), el('span', {class: 'quote'}, '”'));
    const lost = map.delta(here) && Number.isNaN(map.delta(here)[t]);
    facts.textContent = `token ${number(t, 0)}, id ${map.id(t)}, ` +
      (lost ? 'the last of its window: nothing to predict' : `loss of the next ${number(map.loss[t], 2)} nats`);
    const bars = map.layers.map((layer, l) => {
      const value = map.delta(l) ? map.delta(l)[t] : NaN;
      return {x: layer, l, y: Number.isFinite(value) ? scale.to(value) : 0,
        color: (value < 0 ? '--b' : '--o') + '4', note: `layer ${layer}: δ ${signed(value)} nats`};
    });
    const options = {
      small: true, bars, label: `δ of this token at each layer`, yTitle: 'δ, nats', xTitle: 'layer',
      scale, format: (u) => number(scale.from(u), 1, true),
      pick: (bar) => state.set('layer', bar.x),
    };
    if (draw) draw(options); else draw = barChart(chartBox, options);
    const gates = map.packed.gates;
    table.replaceChildren(
      el('caption', {class: 'note'}, gates.length ? 'Gates: L linear map, F full MLP' : ''),
      el('thead', {}, el('tr', {}, ...['layer', 'δ', 'error', ...gates.map((g) => g.name)]
        .map((title) => el('th', {scope: 'col'}, title)))),
      el('tbody', {}, ...map.layers.map((layer, l) => el('tr', {class: l === here ? 'here' : false},
        el('th', {scope: 'row'}, String(layer)),
        el('td', {}, map.delta(l) ? signed(map.delta(l)[t]) : ''),
        el('td', {}, map.error(l) ? (10 ** map.error(l)[t]).toPrecision(2).replace('e+', 'e') : ''),
        ...gates.map((gate, g) => {
          const bytes = map.gate(g, l);
          if (!bytes) return el('td', {}, '–');
          const linear = bytes[t] > 127;
          return el('td', {class: linear ? 'yes' : 'no', title: 'score ' + map.score(g, l, t).toPrecision(3)}, linear ? 'L' : 'F');
        })))));
  };
}

// What every part of the page uses: the data, small DOM helpers, numbers, shared state.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);

// The rows of a table as objects; a figure is {v, lo, hi}.
function rows(id) {
  const table = data.tables.find((t) => t.id === id);
  if (!table) return [];
  return table.rows.map((row) => Object.fromEntries(table.columns.map((column, i) => {
    const cell = row[i];
    return [column.key, Array.isArray(cell) ? {v: cell[0], lo: cell[1], hi: cell[2]} : cell];
  })));
}

// el('p', {class: 'note'}, 'text', child): text is always text, never markup.
function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

const MINUS = '\u2212';

function number(value, digits, sign) {
  if (value === null || value === undefined) return '';
  const text = Math.abs(value).toLocaleString('en', {
    minimumFractionDigits: Math.abs(value) >= 1000 ? 0 : digits,
    maximumFractionDigits: Math.abs(value) >= 1000 ? 0 : digits,
  });
  const zero = !/[1-9]/.test(text);
  return (value < 0 && !zero ? MINUS : sign && !zero ? '+' : '') + text;
}

function percent(value) {
  return value === null ? 'n/a' : number(value, Math.abs(value) < 100 ? 2 : 0, true) + ' %';
}

function interval(figure, format) {
  if (!figure) return '';
  const bounds = figure.lo === null ? '' : ` [${format(figure.lo)}, ${format(figure.hi)}]`;
  return format(figure.v) + bounds;
}

const unique = (values) => [...new Set(values)];

// Sign-keeping logarithm: linear around 0 up to about `c`, logarithmic beyond.
const symlog = (c) => ({
  to: (v) => Math.sign(v) * Math.log10(1 + Math.abs(v) / c),
  from: (u) => Math.sign(u) * c * (10 ** Math.abs(u) - 1),
});

// State that several sections share; on(f) is called after each change.
const state = {
  layer: null,
  listeners: [],
  on(f) { this.listeners.push(f); },
  set(key, value) {
    if (this[key] === value) return;
    this[key] = value;
    this.listeners.forEach((f) => f(key));
  },
};

// A labelled <select>.
function choice(label, options, value, change) {
  const select = el('select', {}, ...options.map(([key, text]) =>
    el('option', {value: key, selected: String(key) === String(value)}, text)));
  select.addEventListener('change', () => change(select.value));
  return el('label', {class: 'choice'}, el('span', {}, label), select);
}

// A group of buttons of which one is pressed.
function segmented(label, options, value, change) {
  const group = el('div', {class: 'segmented', role: 'group', 'aria-label': label});
  for (const [key, text] of options) {
    const button = el('button', {type: 'button', 'aria-pressed': String(key === value)}, text);
    button.addEventListener('click', () => {
      for (const b of group.children) b.setAttribute('aria-pressed', String(b === button));
      change(key);
    });
    group.append(button);
  }
  return group;
}

// The table of that id; `pick(row object)` may leave rows out.
function tableElement(id, pick) {
  const table = data.tables.find((t) => t.id === id);
  const single = new Set(table.rows.map((row) => row[0])).size === 1;
  const kept = table.columns.map((c, i) => i)
    .filter((i) => !(single && table.columns[i].key === 'run'))
    .filter((i) => table.rows.some((row) => row[i] !== null && row[i] !== ''));
  const isText = (i) => table.rows.some((row) => typeof row[i] === 'string');
  const head = el('tr', {}, ...kept.map((i) =>
    el('th', {scope: 'col', class: isText(i) ? 'text' : false}, table.columns[i].title)));
  const body = el('tbody');
  const objects = rows(id);
  table.rows.forEach((row, r) => {
    if (pick && !pick(objects[r])) return;
    body.append(el('tr', {}, ...kept.map((i) => {
      const cell = row[i];
      const {key, digits, sign} = table.columns[i];
      if (key === 'verdict' && cell) return el('td', {class: 'text'}, verdictMark(cell), ' ' + cell);
      if (typeof cell === 'string') return el('td', {class: 'text'}, cell);
      if (cell === null) return el('td');
      if (!Array.isArray(cell)) return el('td', {}, number(cell, digits, sign));
      const bounds = cell[1] === null ? null : el('span', {class: 'bounds'},
        `[${number(cell[1], digits, sign)}, ${number(cell[2], digits, sign)}]`);
      return el('td', {}, number(cell[0], digits, sign), ' ', bounds);
    })));
  });
  return el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': table.title},
    el('table', {}, el('thead', {}, head), body));
}

// The same, folded away under a chart: what the chart shows, for those who cannot see it.
function figures(id, pick) {
  if (!data.tables.some((t) => t.id === id)) return null;
  return el('details', {}, el('summary', {}, 'Figures as a table'), tableElement(id, pick));
}

const VERDICTS = {better: '▲', free: '●', undecided: '○', costs: '▼', holds: '●', 'does not hold': '▼'};
const VERDICT_CLASS = {holds: 'free', 'does not hold': 'costs'};
function verdictMark(verdict) {
  return el('span', {class: 'mark ' + (VERDICT_CLASS[verdict] || verdict), 'aria-hidden': 'true'}, VERDICTS[verdict] || '·');
}

// A part of the page, and its entry in the bar.
function section(id, short, title, lead) {
  const heading = el('h2', {id: id + '-title'}, title);
  const s = el('section', {id, 'aria-labelledby': id + '-title'}, heading,
    lead ? el('p', {class: 'lead'}, lead) : null);
  document.getElementById('main').append(s);
  document.getElementById('nav').append(el('a', {href: '#' + id}, short));
  return s;
}

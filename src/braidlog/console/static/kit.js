// What all pages share: requests, live figures, formats, tables, dialogs. Data becomes text nodes, never markup.
import { h } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import uPlot from "./vendor/uPlot.js";

export const html = htm.bind(h);
let key = "";

export class Failure extends Error {
  constructor(status, told) {
    super(told.error || `the console answered ${status}`);
    this.status = status;
    this.help = told.help || "";
  }
}

async function ask(method, path, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) { headers["content-type"] = "application/json"; headers["x-braidlog-key"] = key; }
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Failure(0, { error: "the console does not answer", help: "Is the process that serves it still running?" });
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Failure(answer.status, told);
  return told;
}

export const get = (path) => ask("GET", path);
export const act = (method, path, body) => ask(method, path, body);

export async function openSession() {
  const told = await get("/session");
  key = told.key;
  return told;
}

export function withQuery(path, query) {
  const found = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

// Fetches a page's table, and again every so often while the page is seen.
export function useData(path, everyMs = 0) {
  const [state, setState] = useState({ data: null, failure: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let isOver = false;
    let timer = 0;
    const load = async () => {
      try {
        const data = await get(path);
        if (!isOver) setState({ data, failure: null });
      } catch (failure) {
        if (!isOver) setState((old) => ({ data: old.data, failure }));
      }
      if (!isOver && everyMs) timer = setTimeout(again, everyMs);
    };
    const again = () => (document.hidden ? (timer = setTimeout(again, everyMs)) : load());
    load();
    return () => { isOver = true; clearTimeout(timer); };
  }, [path, everyMs, turn]);
  return { ...state, reload: () => setTurn((old) => old + 1) };
}

// One stream of figures for all that is on the page.
const listeners = new Set();
let stream = null;
export function useLive(listener) {
  const held = useRef(listener);
  held.current = listener;
  useEffect(() => {
    const listen = (told) => held.current(told);
    listeners.add(listen);
    if (stream === null) {
      stream = new EventSource("/live");
      stream.onmessage = (event) => { const told = JSON.parse(event.data); for (const each of listeners) each(told); };
    }
    return () => {
      listeners.delete(listen);
      if (listeners.size === 0) { stream.close(); stream = null; }
    };
  }, []);
}

// ── formats ──

export const dash = "–";
export const count = (value) => (value == null ? dash : Math.round(value).toLocaleString("en"));
export const short = (value) => {
  if (value == null) return dash;
  if (value !== 0 && value < 10) return value.toFixed(value < 1 ? 2 : 1);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) if (value >= limit) return `${(value / (limit === 1e4 ? 1e3 : limit)).toFixed(1)} ${unit}`;
  return Math.round(value).toLocaleString("en");
};
export const bytes = (value) => {
  if (value == null) return dash;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place < 4) { value /= 1024; place += 1; }
  return `${place === 0 ? Math.round(value) : value.toFixed(value < 10 ? 2 : 1)} ${units[place]}`;
};
export const usd = (value) => {
  if (value == null) return dash;
  const digits = value >= 100 ? 0 : value >= 0.01 || value === 0 ? 2 : 4;
  return `$${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
};
export const ms = (value) => (value == null ? dash : value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);
export const time = (value) => new Date(value).toISOString().replace("T", " ").slice(0, 23);

// ── parts ──

export function Head({ title, sub, children }) {
  useEffect(() => { document.title = `${title} · Braidlog`; }, [title]);
  return html`<header class="head"><div><h1 tabindex="-1">${title}</h1>${sub && html`<p class="sub">${sub}</p>`}</div><div class="row">${children}</div></header>`;
}

export const Stat = ({ label, value, unit, note, kind = "" }) => html`<div class="card stat ${kind}">
  <span class="label">${label}</span><span class="value">${value}${unit && html`<small>${unit}</small>`}</span>
  ${note && html`<span class="note">${note}</span>`}</div>`;

// Stands where a table will be, for as long as it takes.
export const Waiting = ({ data, failure }) => !data && !failure && html`<p class="soft" role="status">Asking the cluster …</p>`;

export const Problem = ({ failure }) => failure && html`<div class="error" role="alert"><b>${failure.message}</b>${failure.help && html`<div>${failure.help}</div>`}</div>`;

export const Tag = ({ kind = "", children }) => html`<span class="tag ${kind}">${children}</span>`;

export function Card({ title, json, children, extra }) {
  return html`<section class="card"><div class="top"><h2>${title}</h2><span class="row">${extra}${json && html`<a class="json" href=${json} target="_blank" rel="noopener">JSON</a>`}</span></div>${children}</section>`;
}

export const jsonOf = (path) => path + (path.includes("?") ? "&" : "?") + "format=json";

// Columns: { name, label, num, show(row) }.
export function Table({ columns, rows, caption, empty = "Nothing here." }) {
  if (!rows || rows.length === 0) return html`<p class="soft">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table><caption>${caption}</caption><thead><tr>
    ${columns.map((each) => html`<th scope="col" class=${each.num ? "num" : ""}>${each.label}</th>`)}</tr></thead><tbody>
    ${rows.map((row) => html`<tr>${columns.map((each) => html`<td class=${each.num ? "num" : each.isName ? "name" : ""}>${each.show ? each.show(row) : row[each.name] ?? dash}</td>`)}</tr>`)}
  </tbody></table></div>`;
}

export function Pager({ data, onStart }) {
  if (!data || data.total <= data.rows_max) return null;
  const last = Math.min(data.start + data.rows_max, data.total);
  return html`<div class="row"><button disabled=${data.start === 0} onClick=${() => onStart(Math.max(0, data.start - data.rows_max))}>Earlier</button>
    <span class="soft">${count(data.start + 1)} to ${count(last)} of ${count(data.total)}</span>
    <button disabled=${last >= data.total} onClick=${() => onStart(data.start + data.rows_max)}>Later</button></div>`;
}

export function Search({ value, onSearch, label }) {
  const timer = useRef(0);
  return html`<input type="search" aria-label=${label} placeholder=${label} value=${value} data-search
    onInput=${(event) => { const text = event.target.value; clearTimeout(timer.current); timer.current = setTimeout(() => onSearch(text), 200); }} />`;
}

// A dialog that asks before something is done, and says what was done.
export function Ask({ title, verb, kind = "main-action", onClose, onDo, children, canDo = true }) {
  const ref = useRef(null);
  const [failure, setFailure] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => { ref.current.showModal(); }, []);
  const go = async (event) => {
    event.preventDefault();
    setBusy(true);
    try { const told = await onDo(); say(told.done); onClose(told); } catch (found) { setFailure(found); setBusy(false); }
  };
  return html`<dialog ref=${ref} onClose=${() => onClose(null)} aria-label=${title}><form onSubmit=${go}><h2>${title}</h2>${children}
    <${Problem} failure=${failure} /><div class="row"><button type="button" onClick=${() => onClose(null)}>Cancel</button>
    <button class=${kind} disabled=${busy || !canDo}>${verb}</button></div></form></dialog>`;
}

let told = () => {};
export function say(text) { told(text); }
export function Toast() {
  const [text, setText] = useState("");
  told = setText;
  useEffect(() => { if (!text) return undefined; const timer = setTimeout(() => setText(""), 8000); return () => clearTimeout(timer); }, [text]);
  return html`<div class="toast" role="status" aria-live="polite">${text}</div>`;
}

export function Bars({ rows, format, other = false }) {
  const most = Math.max(...rows.map((row) => row.value), 1e-12);
  return html`<div class="findings">${rows.map((row) => html`<div class="bar ${row.other || other ? "other" : ""}"><span>${row.label}</span>
    <span class="track"><svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true"><rect width=${Math.max(0, (row.value / most) * 100)} height="12" rx="2" /></svg></span>
    <span class="num">${format(row.value)}</span></div>`)}</div>`;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Plot({ columns, series, format, height = 168, label }) {
  const ref = useRef(null);
  const plot = useRef(null);
  const data = [columns.at_s, ...series.map((each) => columns[each.name])];
  const theme = document.documentElement.dataset.theme;
  useEffect(() => {
    const width = () => Math.max(200, ref.current.clientWidth);
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    plot.current = new uPlot({
      width: width(), height, legend: { live: false }, cursor: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.15, 1e-6)] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toISOString().slice(11, 19)), space: 80 }, { ...axis, size: 66, values: (_, ticks) => ticks.map(format) }],
      series: [{}, ...series.map((each) => ({ label: each.label, stroke: css(each.color || "--accent"), width: 2, dash: each.dash, fill: each.fill ? css("--accent") + "22" : undefined, points: { show: false } }))],
    }, data, ref.current);
    const seen = new ResizeObserver(() => plot.current && plot.current.setSize({ width: width(), height }));
    seen.observe(ref.current);
    return () => { seen.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [theme, height]);
  useEffect(() => { if (plot.current) plot.current.setData(data); });
  return html`<div class="plot" ref=${ref} role="img" aria-label=${label}></div>`;
}

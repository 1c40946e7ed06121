// Uploads: the braid. Each shard is a strand. Shards that upload together wind around each other; objects rise to the store.
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { bytes, Card, count, Head, html, jsonOf, Problem, short, Stat, Table, useData, useLive } from "./kit.js";

const WINDOW_S_MAX = 90;
const KNOTS_MAX = 300;
const RISE_S = 9;
const TWIST_S = 9;
const STEP_S = 0.3;
const COLORS = ["#14b8a6", "#f59e0b", "#818cf8", "#f472b6", "#84cc16", "#38bdf8", "#fb7185", "#c084fc"];

export function Uploads() {
  const { data, failure } = useData("/uploads", 5000);
  const knots = useRef([]);
  const [seen, setSeen] = useState(0);
  useLive((told) => {
    if (!told.knot) return;
    knots.current = [...knots.current, told.knot].slice(-KNOTS_MAX);
    setSeen((old) => old + 1);
  });
  if (data && knots.current.length === 0) knots.current = data.knots.slice(-KNOTS_MAX);
  const rows = data ? data.rows : [];
  const groups = new Set(rows.map((row) => `${row.agent} ${row.group}`)).size;
  const sum = (name) => rows.reduce((total, row) => total + (row[name] || 0), 0);
  return html`<${Head} title="Uploads" sub="Every shard is a strand. Shards that share one upload stream are braided; under load they part, and each uploads alone. Objects rise to the store." />
    <${Problem} failure=${failure} />
    <div class="cards"><${Stat} label="Shards" value=${count(rows.length)} note=${`in ${groups} group${groups === 1 ? "" : "s"} now`} />
      <${Stat} label="Objects" value=${short(sum("objects_s"))} unit="/s" /><${Stat} label="Uploaded" value=${bytes(sum("bytes_s"))} unit="/s" />
      <${Stat} label="Splits and merges" value=${`${count(sum("splits"))} / ${count(sum("merges"))}`} note="since the agents started" /></div>
    <${Braid} rows=${rows} knots=${knots} seen=${seen} />
    ${data && html`<${Card} title="Shards" json=${jsonOf("/uploads")}><${Table} caption="Shards with the same group upload together." rows=${data.rows} columns=${[
      { label: "Shard", isName: true, show: (row) => `${row.agent} · ${row.shard}` }, { label: "Zone", show: (row) => row.zone || "–" },
      { label: "Group", num: true, show: (row) => row.group }, { label: "Objects a second", num: true, show: (row) => (row.objects_s == null ? "–" : row.objects_s.toFixed(2)) },
      { label: "Uploaded", num: true, show: (row) => (row.bytes_s == null ? "–" : `${bytes(row.bytes_s)}/s`) }, { label: "Waiting", num: true, show: (row) => bytes(row.backlog_bytes) },
      { label: "Splits", num: true, show: (row) => count(row.splits) }, { label: "Merges", num: true, show: (row) => count(row.merges) }]} /><//>`}`;
}

function Braid({ rows, knots, seen }) {
  const ref = useRef(null);
  const shown = useRef({ rows: [], at: 0, base: 0 });
  const last = knots.current[knots.current.length - 1];
  if (last && last.at_ms !== shown.current.base) shown.current = { ...shown.current, base: last.at_ms, at: performance.now() };
  shown.current.rows = rows;
  const lane = Math.max(26, Math.min(64, 420 / Math.max(1, rows.length)));
  const height = Math.max(280, 120 + rows.length * lane);
  useEffect(() => {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let frame = 0;
    let before = 0;
    const paint = (at) => {
      if (at - before > 40 && !document.hidden) { before = at; draw(ref.current, shown.current, knots.current, lane, calm); }
      frame = requestAnimationFrame(paint);
    };
    frame = requestAnimationFrame(paint);
    return () => cancelAnimationFrame(frame);
  }, [lane, height]);
  const words = rows.length ? `${rows.length} shards; the table below has the same figures` : "No shard has reported yet";
  return html`<div class="braid"><canvas ref=${ref} data-height=${height} role="img" aria-label=${`The braid: ${words}`} data-seen=${seen}></canvas></div>`;
}

const smooth = (share) => share * share * (3 - 2 * share);

let windowS = WINDOW_S_MAX;

function draw(canvas, shown, knots, lane, calm) {
  const { rows } = shown;
  const dark = document.documentElement.dataset.theme === "dark";
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = Number(canvas.dataset.height);
  windowS = Math.max(30, Math.min(WINDOW_S_MAX, width / 11));
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = `${height}px`; }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const ink = dark ? "#8fa3ad" : "#51636d";
  const back = dark ? "#0d1b20" : "#eef5f5";
  const left = 12;
  const right = width - (width < 560 ? 56 : 92);
  const top = 46;
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  drawStore(pen, right, width, ink, dark);
  if (rows.length === 0 || knots.length === 0) { pen.fillStyle = ink; pen.fillText("Waiting for the first figures …", left + 8, height / 2); return; }
  // A second behind, so that the newest knot is always there to be drawn to.
  const now = shown.base / 1000 + (calm ? 0 : Math.min(1.2, (performance.now() - shown.at) / 1000)) - 1.1;
  const x = (at) => right - ((now - at) / windowS) * (right - left);
  drawTicks(pen, x, now, left, right, height, ink, dark);
  const home = rows.map((_, place) => top + 44 + lane * (place + 0.5));
  const from = now - windowS;
  const used = knots.filter((each, place) => each.at_ms / 1000 >= from - 2 || (knots[place + 1] && knots[place + 1].at_ms / 1000 >= from - 2));
  const centres = used.map((each) => centresOf(each, rows, home));
  drawObjects(pen, used, centres, rows, x, now, left, dark);
  drawStrands(pen, used, centres, rows, home, lane, { x, now, left, right, back });
  fade(pen, left, right, height);
  pen.textAlign = "left";
  rows.forEach((row, place) => {
    const end = strandAt(now, place, used, centres, home, lane);
    pen.fillStyle = COLORS[place % COLORS.length];
    pen.beginPath(); pen.arc(right, end.y, 4.5, 0, 7); pen.fill();
    pen.strokeStyle = ink; pen.lineWidth = 0.6; pen.beginPath(); pen.moveTo(right + 6, end.y); pen.lineTo(right + 16, home[place]); pen.stroke();
    pen.fillStyle = dark ? "#dce7ea" : "#22303a";
    pen.fillText(width < 560 ? `${row.shard}` : `shard ${row.shard}`, right + 20, home[place]);
  });
}

function drawStore(pen, right, width, ink, dark) {
  const shade = pen.createLinearGradient(0, 0, 0, 46);
  shade.addColorStop(0, dark ? "rgb(94 234 212 / 22%)" : "rgb(13 148 136 / 20%)");
  shade.addColorStop(1, "rgb(13 148 136 / 0%)");
  pen.fillStyle = shade;
  pen.fillRect(0, 0, width, 46);
  pen.fillStyle = ink;
  pen.textAlign = "left";
  pen.fillText(width < 560 ? "store" : "object store", right + 14, 22);
}

function drawTicks(pen, x, now, left, right, height, ink, dark) {
  pen.textAlign = "center";
  for (let back = 0; back <= windowS; back += 15) {
    const place = x(Math.floor(now / 15) * 15 - back);
    if (place < left + 14 || place > right - 14) continue;
    pen.strokeStyle = dark ? "rgb(255 255 255 / 6%)" : "rgb(20 40 50 / 8%)";
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(place, 46); pen.lineTo(place, height - 24); pen.stroke();
    pen.fillStyle = ink;
    pen.fillText(new Date((Math.floor(now / 15) * 15 - back) * 1000).toISOString().slice(11, 19), place, height - 12);
  }
}

// The middle of each shard's group, and its turn in it.
function centresOf(knot, rows, home) {
  const groups = new Map();
  rows.forEach((row, place) => {
    const moment = knot.shards[row.node_id];
    const name = `${row.agent} ${moment ? moment.group : row.shard}`;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(place);
  });
  const found = new Array(rows.length);
  for (const members of groups.values()) {
    const middle = members.reduce((sum, place) => sum + home[place], 0) / members.length;
    members.forEach((place, turn) => { found[place] = { middle, turn, size: members.length, first: members[0] }; });
  }
  return found;
}

function strandAt(at, place, knots, centres, home, lane) {
  let next = knots.findIndex((each) => each.at_ms / 1000 > at);
  if (next < 0) next = knots.length - 1;
  const before = Math.max(0, next - 1);
  const span = (knots[next].at_ms - knots[before].at_ms) / 1000 || 1;
  const share = smooth(Math.max(0, Math.min(1, (at - knots[before].at_ms / 1000) / span)));
  const wind = (centre) => {
    if (centre.size === 1) return { y: home[place], depth: 0 };
    const angle = (at / TWIST_S + centre.turn / centre.size) * 2 * Math.PI;
    const reach = Math.min(lane * 0.36 * Math.sqrt(centre.size), 46);
    return { y: centre.middle + reach * Math.sin(angle), depth: Math.cos(angle * 2 + centre.turn) };
  };
  const old = wind(centres[before][place]);
  const fresh = wind(centres[next][place]);
  return { y: old.y + (fresh.y - old.y) * share, depth: old.depth + (fresh.depth - old.depth) * share };
}

function drawStrands(pen, knots, centres, rows, home, lane, view) {
  const { x, now, left, right, back } = view;
  const begin = Math.max(knots[0].at_ms / 1000, now - windowS);
  for (let at = Math.ceil(begin / STEP_S) * STEP_S; at < now; at += STEP_S) {
    const until = Math.min(at + STEP_S, now);
    const x1 = Math.max(left, x(at));
    const x2 = Math.min(right, x(until));
    const pieces = rows.map((row, place) => {
      const one = strandAt(at, place, knots, centres, home, lane);
      const two = strandAt(until, place, knots, centres, home, lane);
      return { place, y1: one.y, y2: two.y, depth: one.depth };
    }).sort((one, two) => one.depth - two.depth);
    for (const piece of pieces) {
      pen.lineCap = "butt";
      pen.strokeStyle = back;
      pen.lineWidth = 8.5;
      pen.beginPath(); pen.moveTo(x1, piece.y1); pen.lineTo(x2, piece.y2); pen.stroke();
      pen.lineCap = "round";
      pen.strokeStyle = COLORS[piece.place % COLORS.length];
      pen.lineWidth = 4.2;
      pen.beginPath(); pen.moveTo(x1, piece.y1); pen.lineTo(x2, piece.y2); pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

// What is old fades into the background.
function fade(pen, left, right, height) {
  const mask = pen.createLinearGradient(left, 0, left + (right - left) * 0.3, 0);
  mask.addColorStop(0, "rgb(0 0 0 / 90%)");
  mask.addColorStop(1, "rgb(0 0 0 / 0%)");
  pen.globalCompositeOperation = "destination-out";
  pen.fillStyle = mask;
  pen.fillRect(0, 46, left + (right - left) * 0.3, height - 46 - 24);
  pen.globalCompositeOperation = "source-over";
}

function drawObjects(pen, knots, centres, rows, x, now, left, dark) {
  knots.forEach((knot, number) => {
    const at = knot.at_ms / 1000;
    const age = now - at;
    if (age < 0 || age > windowS) return;
    const rise = smooth(Math.min(1, age / RISE_S));
    rows.forEach((row, place) => {
      const moment = knot.shards[row.node_id];
      if (!moment || !moment.objects) return;
      const centre = centres[number][place];
      const start = centre.middle;
      const many = Math.min(moment.objects, 5);
      const radius = Math.max(2, Math.min(9, Math.sqrt(moment.bytes / moment.objects) / 270)) * (1 - 0.3 * rise);
      for (let turn = 0; turn < many; turn += 1) {
        const dx = x(at - (turn / many) * 0.9) + place % 3;
        if (dx < left + radius) continue;
        const y = start + (14 + ((turn + place) % 4) * 7 - start) * rise;
        pen.globalAlpha = (rise >= 1 ? 0.55 : 0.9) * (dark ? 1 : 0.95);
        pen.fillStyle = COLORS[place % COLORS.length];
        pen.beginPath(); pen.arc(dx, y, radius, 0, 7); pen.fill();
        pen.strokeStyle = dark ? "rgb(255 255 255 / 75%)" : "rgb(255 255 255 / 95%)"; pen.lineWidth = 1;
        pen.beginPath(); pen.arc(dx, y, radius, 0, 7); pen.stroke();
      }
    });
  });
  pen.globalAlpha = 1;
}

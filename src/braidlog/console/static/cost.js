// Cost: the bill of a month, by kind and by topic, beside other ways, and what a budget buys.
import { useState } from "./vendor/hooks.js";
import { Bars, bytes, Card, Head, html, jsonOf, ms, Pager, Problem, Search, short, Stat, Table, usd, useData, Waiting, withQuery } from "./kit.js";

export function Cost() {
  const [query, setQuery] = useState({ price: "", q: "", start: "" });
  const path = withQuery("/cost", query);
  const { data, failure } = useData(path, 5000);
  return html`<${Head} title="Cost" sub="What this cluster's storage costs in a month at the pace of the last minute.">
      ${data && html`<label class="field">Price list<select value=${data.price} onChange=${(event) => setQuery({ ...query, price: event.target.value })}>
        ${data.prices.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`}<//>
    <${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`
    ${data.is_other_price && html`<div class="finding"><b>These are the prices of ${data.price}.</b>The cluster's own store charges by another list, or nothing.</div>`}
    <div class="cards">
      <${Stat} kind="hero" label="A month at this pace" value=${usd(data.month_usd)} note=${`list prices of ${data.as_of}, us-east-1`} />
      <${Stat} label="Budget for early uploads" value=${usd(data.budget_usd_month)} unit="/month" note=${budgetNote(data)} />
      <${Stat} label="Stored" value=${bytes(data.stored_bytes)} note=${`${usd(kindOf(data, "storage"))} a month`} />
      <${Stat} label="Load" value=${bytes(data.bytes_s)} unit="/s" note=${`${short(data.requests_s)} requests/s, over ${data.over_s} s`} />
    </div>
    <div class="two">
      <${Card} title="By kind" json=${jsonOf(path)}><${Bars} rows=${data.kinds.map((each) => ({ label: each.kind, value: each.usd_month }))} format=${usd} />
        <p class="soft">Dollars a month. Machines are not counted, here or below.</p><//>
      <${Card} title="The same load, done otherwise"><${Bars} rows=${data.beside.map((each, place) => ({ label: each.way, value: each.usd_month, other: place > 0 }))} format=${usd} />
        <dl class="kv">${data.beside.map((each) => html`<dt>${each.way}</dt><dd class="soft">${each.detail}</dd>`)}</dl><//>
    </div>
    <${Slider} data=${data} />
    <${Card} title="By topic" json=${jsonOf(path)} extra=${html`<${Search} label="Search topics" value=${query.q} onSearch=${(q) => setQuery({ ...query, q, start: "" })} />`}>
      <${Table} caption="A topic's part of each object is its part of the PUT." rows=${data.rows} empty="No topic has this in its name." columns=${[
        { label: "Topic", isName: true, show: (row) => html`<a href=${`/topics/${encodeURIComponent(row.topic)}`}>${row.topic}</a>` },
        { label: "USD a month", num: true, show: (row) => usd(row.usd_month) },
        { label: "Uploads", num: true, show: (row) => usd(row.uploads_usd) },
        { label: "Reads", num: true, show: (row) => usd(row.reads_usd) },
        { label: "Storage", num: true, show: (row) => usd(row.storage_usd) },
        { label: "Written", num: true, show: (row) => `${bytes(row.bytes_s)}/s` },
        { label: "Stored", num: true, show: (row) => bytes(row.stored_bytes) }]} />
      <${Pager} data=${data} onStart=${(start) => setQuery({ ...query, start })} /><//>`}`;
}

const kindOf = (data, kind) => data.kinds.find((each) => each.kind === kind).usd_month;

function budgetNote(data) {
  const spent = kindOf(data, "PUT");
  if (data.budget_usd_month <= 0) return "no early uploads";
  if (spent > data.budget_usd_month) return `uploads that cannot wait cost ${usd(spent)}`;
  return `${usd(spent)} of it is used, by ${data.agents} agent${data.agents === 1 ? "" : "s"}`;
}

function Slider({ data }) {
  const nearest = data.curve.reduce((best, each, place) => (Math.abs(each.budget_usd - data.budget_per_agent_usd) < Math.abs(data.curve[best].budget_usd - data.budget_per_agent_usd) ? place : best), 0);
  const [chosen, setChosen] = useState(null);
  const place = chosen ?? nearest;
  const point = data.curve[place];
  const now = data.curve[nearest];
  return html`<${Card} title="What a budget buys"><p class="soft">A larger budget pays for uploads that do not wait, so records are acknowledged sooner. A smaller one makes fewer and larger objects.</p>
    <div class="cards"><${Stat} label="Budget of one agent" value=${usd(point.budget_usd)} unit="/month" note=${place === nearest ? "about what is set now" : `set now: ${usd(data.budget_per_agent_usd)}`} />
      <${Stat} label="Mean latency, by the model" value=${ms(point.latency_ms)} note=${place === nearest ? `a PUT takes ${ms(data.put_s * 1000)}` : `${point.latency_ms <= now.latency_ms ? "" : "+"}${ms(point.latency_ms - now.latency_ms).replace("-", "−")} against now`} />
      <${Stat} label="Objects" value=${short(point.puts_s)} unit="/s" note=${`${usd(point.usd_month)} a month for uploads`} /></div>
    <${Curve} curve=${data.curve} place=${place} nearest=${nearest} />
    <label class="field">Budget<input type="range" min="0" max=${data.curve.length - 1} value=${place} onInput=${(event) => setChosen(Number(event.target.value))}
      aria-valuetext=${`${usd(point.budget_usd)} a month, ${ms(point.latency_ms)}`} /></label>
    <p class="soft">To set it, start agents with <code>--set upload_budget_usd_month=${point.budget_usd}</code>.</p><//>`;
}

function Curve({ curve, place, nearest }) {
  const most = Math.max(...curve.map((each) => each.latency_ms), 1);
  const x = (index) => 12 + (index / (curve.length - 1)) * 776;
  const y = (each) => 112 - (each.latency_ms / most) * 96;
  const line = curve.map((each, index) => `${x(index)},${y(each)}`).join(" ");
  return html`<svg class="curve" viewBox="0 0 800 124" preserveAspectRatio="none" role="img" aria-label="Latency by budget: it falls as the budget grows">
    <polygon points=${`12,112 ${line} 788,112`} fill="var(--accent)" opacity="0.12" /><polyline points=${line} fill="none" stroke="var(--accent)" stroke-width="2.500" />
    <line x1=${x(nearest)} x2=${x(nearest)} y1="8" y2="112" stroke="var(--soft)" stroke-dasharray="4 4" />
    <circle cx=${x(place)} cy=${y(curve[place])} r="7" fill="var(--accent)" stroke="var(--card)" stroke-width="3" /></svg>`;
}

// Overview: the load now and over the last minutes, and what is wrong.
import { useState } from "./vendor/hooks.js";
import { bytes, Card, count, Head, html, jsonOf, ms, Plot, Problem, short, Stat, Table, usd, useData, Waiting, useLive } from "./kit.js";

const KEPT = 300;

export function Overview() {
  const { data, failure } = useData("/", 10000);
  const [load, setLoad] = useState(null);
  const [added, setAdded] = useState([]);
  useLive((told) => {
    if (!told.load.known) return;
    setLoad(told.load);
    setAdded((old) => [...old, told.load].slice(-KEPT));
  });
  const now = load || (data && data.load.known ? data.load : null);
  const columns = joined(data ? data.history : null, added);
  return html`<${Head} title="Overview" sub=${data && `Cluster ${data.cluster_id}, records in ${data.store}`} />
    <${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    <div class="cards three">
      <${Stat} label="Produced" value=${now ? bytes(now.produce_bytes_s) : "–"} unit="/s" note=${now && `${short(now.produce_requests_s)} requests/s`} />
      <${Stat} label="Fetches" value=${now ? short(now.fetch_requests_s) : "–"} unit="/s" note=${now && `${count(now.connections)} connections`} />
      <${Stat} label="Produce latency, p99" value=${now ? ms(now.produce_ms_p99) : "–"} note=${now && `median ${ms(now.produce_ms_p50)}, a PUT ${ms(now.put_ms_p50)}`} />
      <${Stat} label="Requests to the store" value=${now ? short(now.puts_s) : "–"} unit="PUT/s" note=${now && `${short(now.gets_s)} GET/s`} />
      <${Stat} label="Bill at this pace" value=${now ? usd(now.usd_month) : "–"} unit="/month" note=${now && html`${now.price}; <a href="/cost">by topic</a>`} />
      <${Stat} label="Waiting for upload" value=${now ? bytes(now.backlog_bytes) : "–"} note=${now && `uploads under way: ${count(now.uploads_in_flight)}`} />
    </div>
    ${data && html`<div class="findings" aria-label="What is wrong">${data.findings.length === 0 ? html`<div class="finding ok"><b>All is well.</b>Every agent follows the feed, and every process answers.</div>`
      : data.findings.map((each) => html`<div class="finding"><b>${each.finding[0].toUpperCase() + each.finding.slice(1)}</b>${each.advice}</div>`)}</div>`}
    <div class="two">
      <${Card} title="Produced bytes a second"><${Plot} columns=${columns} series=${[{ name: "produce_bytes_s", label: "bytes/s", fill: true }]} format=${(value) => bytes(value)} label="Produced bytes a second over time" /><//>
      <${Card} title="Requests to the store a second"><${Plot} columns=${columns} series=${[{ name: "puts_s", label: "PUT/s" }, { name: "gets_s", label: "GET/s", color: "--soft", dash: [5, 4] }]} format=${(value) => short(value)} label="Requests to the store a second over time" /><//>
      <${Card} title="Produce latency, p99"><${Plot} columns=${columns} series=${[{ name: "produce_ms_p99", label: "ms" }]} format=${(value) => ms(value)} label="Produce latency over time" /><//>
      ${data && html`<${Card} title="Cluster" json=${jsonOf("/")}><dl class="kv">
        <dt>Control plane</dt><dd>${data.active}, active for ${duration(data.active_s)}</dd>
        <dt>Stand by</dt><dd>${data.standbys.length === 0 ? "nobody" : data.standbys.map((each) => each.name).join(", ")}</dd>
        <dt>Copy of the metadata</dt><dd>${data.copy}</dd>
        <dt>Topics</dt><dd><a href="/topics">${count(data.topics)}</a> with ${count(data.partitions)} partitions</dd>
        <dt>Jobs</dt><dd><a href="/jobs">${Object.entries(data.jobs).map(([state, number]) => `${number} ${state}`).join(", ") || "none"}</a></dd></dl>
        <${Table} caption="Agents by zone" rows=${Object.entries(data.agents_by_zone).map(([zone, number]) => ({ zone: zone || "no zone", number }))}
          columns=${[{ name: "zone", label: "Zone", isName: true }, { name: "number", label: "Agents", num: true }]} /><//>`}
    </div>`;
}

function joined(history, added) {
  const names = ["at_s", "produce_bytes_s", "puts_s", "gets_s", "produce_ms_p99"];
  const from = history && history.at_s.length ? history.at_s[history.at_s.length - 1] : 0;
  const fresh = added.filter((each) => each.at_ms / 1000 > from);
  return Object.fromEntries(names.map((name) => [name, [...(history ? history[name] : []), ...fresh.map((each) => (name === "at_s" ? each.at_ms / 1000 : each[name]))].slice(-KEPT)]));
}

function duration(seconds) {
  for (const [limit, unit] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
    if (seconds >= limit) { const number = Math.floor(seconds / limit); return `${number} ${unit}${number === 1 ? "" : "s"}`; }
  }
  return `${seconds} seconds`;
}

// Transactions, agents and stores, jobs: the pages of those who run the cluster.
import { useState } from "./vendor/hooks.js";
import { act, Ask, bytes, Card, count, Head, html, jsonOf, Pager, Problem, Search, Table, Tag, usd, useData, Waiting, withQuery } from "./kit.js";

export function Transactions() {
  const [query, setQuery] = useState({ q: "", start: "" });
  const path = withQuery("/transactions", query);
  const { data, failure } = useData(path, 4000);
  return html`<${Head} title="Transactions" sub="Open ones first. One that is open for longer than its timeout hangs."><${Search} label="Search ids" value=${query.q} onSearch=${(q) => setQuery({ q, start: "" })} /><//><${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<${Card} title="Transactional ids" json=${jsonOf(path)}><${Table} caption="By transactional id." rows=${data.rows} empty="No producer has used transactions yet." columns=${[
      { label: "Transactional id", isName: true, show: (row) => row.transactional_id }, { label: "State", show: (row) => html`<${Tag} kind=${row.hangs ? "bad" : row.is_open ? "warn" : "good"}>${row.hangs ? `${row.state}, hangs` : row.state}<//>` },
      { label: "Open for", num: true, show: (row) => (row.open_s == null ? "–" : `${count(row.open_s)} s`) }, { label: "Timeout", num: true, show: (row) => (row.timeout_ms == null ? "–" : `${count(row.timeout_ms / 1000)} s`) },
      { label: "Producer id", num: true, show: (row) => row.producer_id }, { label: "Partitions", show: (row) => (row.partitions || []).join(", ") || "–" }]} /><${Pager} data=${data} onStart=${(start) => setQuery({ ...query, start })} /><//>`}`;
}

export function Agents() {
  const { data, failure } = useData("/agents", 4000);
  return html`<${Head} title="Agents and stores" /><${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<${Card} title="Agents" json=${jsonOf("/agents")}><${Table} caption="One row for each process that serves clients." rows=${data.rows} columns=${[
      { label: "Node", num: true, show: (row) => row.node_id }, { label: "Address", isName: true, show: (row) => row.address }, { label: "Zone", show: (row) => row.zone || "–" },
      { label: "Heard", num: true, show: (row) => `${row.heard_s_ago} s ago` }, { label: "Changes behind", num: true, show: (row) => count(row.feed_lag) }, { label: "Connections", num: true, show: (row) => count(row.connections) },
      { label: "Cache", num: true, show: (row) => bytes(row.cache_bytes) }, { label: "Hits", num: true, show: (row) => (row.cache_hits == null ? "–" : `${Math.round(row.cache_hits * 100)}%`) }, { label: "Memory", num: true, show: (row) => bytes(row.memory_bytes) },
      { label: "Budget", num: true, show: (row) => (row.budget_usd_month == null ? "–" : `${usd(row.budget_usd_month)}${row.shards > 1 ? ` for ${row.shards}` : ""}`) },
      { label: "Control plane", show: (row) => html`<${Tag} kind=${row.control === "away" ? "bad" : "good"}>${row.control}<//> ${row.outages ? `${row.outages} outages` : ""}` }]} /><//>
    <div class="two"><${Card} title="Control planes"><${Table} caption="One is active, others stand by." rows=${data.control_planes} columns=${[{ label: "Name", isName: true, name: "name" }, { label: "State", show: (row) => html`<${Tag} kind=${row.state === "active" ? "good" : ""}>${row.state}<//>` }, { label: "Since", name: "since" }]} /><//>
    <${Card} title="Stores"><${Table} caption="Where all records are." rows=${data.stores} columns=${[{ label: "Store", isName: true, name: "store" }, { label: "Copy of the metadata", name: "copy_of_metadata" }]} /><//></div>`}`;
}

const jobKind = (state) => ({ done: "good", failed: "bad", running: "warn" })[state] || "";

export function Jobs() {
  const [query, setQuery] = useState({ q: "", state: "", start: "" });
  const [asked, setAsked] = useState(false);
  const path = withQuery("/jobs", query);
  const { data, failure, reload } = useData(path, 3000);
  return html`<${Head} title="Jobs" sub="Merges, compactions, scans and replays, with what they made of what they read."><${Search} label="Search jobs" value=${query.q} onSearch=${(q) => setQuery({ ...query, q, start: "" })} />
      <label class="field">State<select value=${query.state} onChange=${(event) => setQuery({ ...query, state: event.target.value, start: "" })}>${["", "waiting", "running", "done", "failed"].map((each) => html`<option value=${each}>${each || "all"}</option>`)}</select></label>
      <button class="main-action" onClick=${() => setAsked(true)}>Compact a topic …</button><//><${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<${Card} title="Jobs" json=${jsonOf(path)}><${Table} caption="Open ones first, then the newest." rows=${data.rows} empty="There were no jobs yet." columns=${[
      { label: "Job", num: true, show: (row) => row.job }, { label: "Kind", show: (row) => row.kind }, { label: "State", show: (row) => html`<${Tag} kind=${jobKind(row.state)}>${row.state}<//>` }, { label: "Subject", isName: true, show: (row) => row.subject },
      { label: "Read", num: true, show: (row) => bytes(row.bytes_in) }, { label: "Written", num: true, show: (row) => bytes(row.bytes_out) }, { label: "Extents", num: true, show: (row) => `${count(row.extents_in)} → ${count(row.extents_out)}` },
      { label: "Took", num: true, show: (row) => (row.seconds == null ? "–" : `${row.seconds} s`) }, { label: "Detail", show: (row) => row.detail || "–" }]} /><${Pager} data=${data} onStart=${(start) => setQuery({ ...query, start })} /><//>`}
    ${asked && html`<${Compact} onClose=${() => { setAsked(false); reload(); }} />`}`;
}

function Compact({ onClose }) {
  const [topic, setTopic] = useState("");
  return html`<${Ask} title="Compact a topic now" verb="Compact it" canDo=${topic !== ""} onClose=${onClose} onDo=${() => act("POST", "/jobs", { compact: topic })}>
    <p class="soft">Keeps the newest record of each key. The topic's cleanup.policy must be compact.</p><label class="field">Topic<input value=${topic} onInput=${(event) => setTopic(event.target.value)} required /></label><//>`;
}

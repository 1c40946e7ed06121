// Topics: the list, one topic with its configs, and its messages.
import { useState } from "./vendor/hooks.js";
import { act, Ask, bytes, Card, count, Head, html, jsonOf, Pager, Problem, Search, Stat, Table, Tag, time, useData, Waiting, withQuery } from "./kit.js";

const at = (topic, rest = "") => `/topics/${encodeURIComponent(topic)}${rest}`;
const go = (to) => { history.pushState(null, "", to); dispatchEvent(new PopStateEvent("popstate")); };

export function Topics() {
  const [query, setQuery] = useState({ q: "", start: "" });
  const path = withQuery("/topics", query);
  const { data, failure, reload } = useData(path, 5000);
  const [asked, setAsked] = useState(false);
  return html`<${Head} title="Topics" sub=${data && `${count(data.total)} topics`}><${Search} label="Search topics" value=${query.q} onSearch=${(q) => setQuery({ q, start: "" })} />
      <button class="main-action" onClick=${() => setAsked(true)}>Create a topic</button><//>
    <${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<${Card} title="All topics" json=${jsonOf(path)}><${Table} caption="Size is what the store holds of a topic." rows=${data.rows} empty="There is no such topic." columns=${[
      { label: "Topic", isName: true, show: (row) => html`<a href=${at(row.topic)}>${row.topic}</a>` }, { label: "Partitions", num: true, show: (row) => count(row.partitions) },
      { label: "Size", num: true, show: (row) => bytes(row.bytes) }, { label: "Written now", num: true, show: (row) => `${bytes(row.bytes_s)}/s` },
      { label: "", show: (row) => html`<a href=${at(row.topic, "/messages")}>Messages<span class="skip"> of ${row.topic}</span></a>` }]} />
      <${Pager} data=${data} onStart=${(start) => setQuery({ ...query, start })} /><//>`}
    ${asked && html`<${Create} onClose=${(told) => { setAsked(false); if (told) reload(); }} />`}`;
}

function Create({ onClose }) {
  const [topic, setTopic] = useState("");
  const [partitions, setPartitions] = useState(1);
  return html`<${Ask} title="Create a topic" verb="Create" canDo=${topic !== ""} onClose=${onClose} onDo=${() => act("POST", "/topics", { topic, partitions: Number(partitions) })}>
    <label class="field">Name<input value=${topic} onInput=${(event) => setTopic(event.target.value)} required /></label>
    <label class="field">Partitions<input type="number" min="1" value=${partitions} onInput=${(event) => setPartitions(event.target.value)} /></label><//>`;
}

const Tabs = ({ topic, here }) => html`<nav class="tabs" aria-label="Parts of the topic"><a href=${at(topic)} aria-current=${here === "topic" ? "page" : undefined}>Partitions and configs</a>
  <a href=${at(topic, "/messages")} aria-current=${here === "messages" ? "page" : undefined}>Messages</a></nav>`;

export function Topic({ topic }) {
  const { data, failure, reload } = useData(at(topic), 5000);
  const [asked, setAsked] = useState(null);
  const [all, setAll] = useState(false);
  const set = data ? data.configs.filter((each) => each.from === "dynamic topic config") : [];
  return html`<${Head} title=${topic}><button class="danger" onClick=${() => setAsked({ what: "delete" })}>Delete …</button><//><${Tabs} topic=${topic} here="topic" /><${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<div class="cards"><${Stat} label="Partitions" value=${count(data.partition_count)} /><${Stat} label="Offsets held" value=${count(data.records)} /><${Stat} label="Size" value=${bytes(data.bytes)} /></div>
    <div class="two"><${Card} title="Partitions" json=${jsonOf(at(topic))}><${Table} caption="Offsets from the first one held up to the end." rows=${data.rows} columns=${[
      { label: "Partition", num: true, show: (row) => row.partition }, { label: "Agent", num: true, show: (row) => row.leader }, { label: "First offset", num: true, show: (row) => count(row.log_start_offset) },
      { label: "End", num: true, show: (row) => count(row.high_watermark) }, { label: "Offsets", num: true, show: (row) => count(row.records) }]} /><//>
    <${Card} title="Configs" extra=${html`<button onClick=${() => setAll(!all)}>${all ? "Only those set here" : "All"}</button><button onClick=${() => setAsked({ what: "set", name: "", value: "" })}>Set one …</button>`}>
      <${Table} caption="With where each value comes from." rows=${all ? data.configs : set} empty="Nothing is set for this topic; all configs have their defaults." columns=${[
        { label: "Config", isName: true, show: (row) => row.config }, { label: "Value", show: (row) => html`<span class="mono">${row.value === "" ? "(empty)" : row.value ?? "–"}</span>` }, { label: "From", show: (row) => row.from },
        { label: "", show: (row) => html`<button onClick=${() => setAsked({ what: "set", name: row.config, value: row.value ?? "", isSet: row.from === "dynamic topic config" })} aria-label=${`Change ${row.config}`}>Change</button>` }]} /><//></div>`}
    ${asked && asked.what === "set" && html`<${SetConfig} topic=${topic} asked=${asked} known=${data ? data.configs : []} onClose=${() => { setAsked(null); reload(); }} />`}
    ${asked && asked.what === "delete" && html`<${Delete} topic=${topic} onClose=${(told) => { setAsked(null); if (told) go("/topics"); }} />`}`;
}

function SetConfig({ topic, asked, known, onClose }) {
  const [name, setName] = useState(asked.name);
  const [value, setValue] = useState(asked.value);
  const [unset, setUnset] = useState(false);
  const body = unset ? { unset: [name] } : { set: { [name]: value } };
  return html`<${Ask} title=${`Change a config of ${topic}`} verb=${unset ? "Return to the default" : "Set"} canDo=${name !== ""} onClose=${onClose} onDo=${() => act("PATCH", at(topic), body)}>
    <label class="field">Config<select value=${name} onChange=${(event) => setName(event.target.value)}><option value="">choose …</option>${known.map((each) => html`<option value=${each.config}>${each.config}</option>`)}</select></label>
    <label class="field">Value<input value=${value} disabled=${unset} onInput=${(event) => setValue(event.target.value)} /></label>
    ${asked.isSet && html`<label><input type="checkbox" checked=${unset} onChange=${(event) => setUnset(event.target.checked)} /> Return it to its default</label>`}
    <p class="soft">A shorter retention deletes records for good.</p><//>`;
}

function Delete({ topic, onClose }) {
  const [name, setName] = useState("");
  return html`<${Ask} title=${`Delete ${topic}`} verb="Delete it" kind="danger" canDo=${name === topic} onClose=${onClose} onDo=${() => act("DELETE", at(topic), { confirm: name })}>
    <p>All its records go, and cannot be had back.</p><label class="field">Type its name<input value=${name} onInput=${(event) => setName(event.target.value)} autocomplete="off" /></label><//>`;
}

// ── messages ──

export function Messages({ topic }) {
  const [query, setQuery] = useState({ from: "tail", partition: "all", q: "", count: 50 });
  const [follows, setFollows] = useState(false);
  const [asked, setAsked] = useState(false);
  const path = withQuery(at(topic, "/messages"), query);
  const { data, failure, reload } = useData(path, follows ? 2000 : 0);
  return html`<${Head} title=${topic}><button class="main-action" onClick=${() => setAsked(true)}>Produce a message</button><//><${Tabs} topic=${topic} here="messages" />
    <div class="row"><${From} value=${query.from} onFrom=${(from) => setQuery({ ...query, from })} />
      <label class="field">Partition<select value=${query.partition} onChange=${(event) => setQuery({ ...query, partition: event.target.value })}><option value="all">all</option>
        ${data && Array.from({ length: Math.min(data.partition_count, 1000) }, (_, number) => html`<option value=${number}>${number}</option>`)}</select></label>
      <label class="field">Show<select value=${query.count} onChange=${(event) => setQuery({ ...query, count: event.target.value })}>${[20, 50, 100, 200].map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
      <label class="field">Filter<${Search} label="Key, value or header" value=${query.q} onSearch=${(q) => setQuery({ ...query, q })} /></label>
      <label><input type="checkbox" checked=${follows} onChange=${(event) => setFollows(event.target.checked)} /> follow</label><button onClick=${reload}>Read again</button></div>
    <${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<${Card} title=${`${count(data.rows.length)} messages`} json=${jsonOf(path)} extra=${html`<span class="soft">${count(data.scanned)} looked at</span>`}>
      ${data.left_out > 0 && html`<p class="soft">${count(data.left_out)} partitions are left out: choose one.</p>`}
      ${data.rows.length === 0 ? html`<p class="soft">No message was found.</p>` : html`<div class="findings">${data.rows.map((row) => html`<${Message} topic=${topic} row=${row} key=${`${row.partition}/${row.offset}`} />`)}</div>`}<//>`}
    ${asked && html`<${Produce} topic=${topic} onClose=${(told) => { setAsked(false); if (told) reload(); }} />`}`;
}

function From({ value, onFrom }) {
  const kind = value === "tail" || value === "beginning" ? value : value.startsWith("@") ? "time" : "offset";
  const [text, setText] = useState("");
  const choose = (chosen) => onFrom(chosen === "offset" ? text.replace(/\D/g, "") || "0" : chosen === "time" ? `@${new Date(Date.now() - 3600e3).toISOString().slice(0, 19)}Z` : chosen);
  return html`<label class="field">From<select value=${kind} onChange=${(event) => choose(event.target.value)}><option value="tail">the newest</option><option value="beginning">the beginning</option><option value="offset">an offset</option><option value="time">a time</option></select></label>
    ${(kind === "offset" || kind === "time") && html`<label class="field">${kind === "offset" ? "Offset" : "Time (UTC)"}<input value=${kind === "time" ? value.slice(1) : value}
      onChange=${(event) => { setText(event.target.value); onFrom(kind === "time" ? `@${event.target.value}` : event.target.value.replace(/\D/g, "") || "0"); }} /></label>`}`;
}

// Control characters are shown by their picture, so that nothing can hide or reorder what is read.
const plain = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (found) => String.fromCharCode(0x2400 + found.charCodeAt(0))).replace(/[\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
const line = (part) => (part.kind === "null" ? "null" : part.kind === "base64" ? `base64 ${part.text.slice(0, 120)}` : plain(part.text.slice(0, 200)).replace(/\s+/g, " "));

function pretty(part) {
  if (part.kind === "null") return "null";
  if (part.kind === "base64") return part.text;
  if (!part.cut && /^\s*[[{]/.test(part.text)) { try { return plain(JSON.stringify(JSON.parse(part.text), null, 2)); } catch { /* it only looks like JSON */ } }
  return plain(part.text);
}

function Message({ topic, row }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="message" onToggle=${(event) => setOpen(event.target.open)}><summary><span class="mono">${row.partition} / ${row.offset}</span><span class="soft when">${time(row.timestamp_ms)}</span><span class="mono key">${line(row.key)}</span><span class="mono">${line(row.value)}</span></summary>
    ${isOpen && html`<div class="inside"><dl class="kv"><dt>Partition, offset</dt><dd>${row.partition}, ${row.offset}</dd><dt>Time</dt><dd>${time(row.timestamp_ms)} UTC</dd><dt>Key</dt><dd class="mono">${pretty(row.key)}</dd>
      <dt>Value</dt><dd>${bytes(row.value.bytes)} <${Tag}>${row.value.kind}<//> ${row.value.cut && "cut off; "}<a href=${at(topic, `/messages/${row.partition}/${row.offset}`)} target="_blank" rel="noopener" download>download</a></dd>
      ${row.headers.map((each) => html`<dt>Header ${plain(each.name)}</dt><dd class="mono">${pretty(each.value)}${each.value.cut ? " (cut off)" : ""}</dd>`)}
      ${row.headers_left_out > 0 && html`<dt>Headers</dt><dd>${row.headers_left_out} more are not shown</dd>`}</dl><pre tabindex="0">${pretty(row.value)}</pre></div>`}</details>`;
}

function Produce({ topic, onClose }) {
  const [key, setKey] = useState("");
  const [value, setValue] = useState("");
  return html`<${Ask} title=${`Produce a message to ${topic}`} verb="Produce" onClose=${onClose} onDo=${() => act("POST", at(topic, "/messages"), { key: key === "" ? null : key, value })}>
    <label class="field">Key (empty: none)<input value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
    <label class="field">Value<textarea value=${value} onInput=${(event) => setValue(event.target.value)}></textarea></label><//>`;
}

// Groups: the list, one group with its members and lag, and a move of its offsets, with a preview first.
import { useState } from "./vendor/hooks.js";
import { act, Ask, Card, count, Head, html, jsonOf, Pager, Problem, Search, Stat, Table, Tag, useData, Waiting, withQuery } from "./kit.js";

const at = (group) => `/groups/${group.split("/").map(encodeURIComponent).join("/")}`;
const stateKind = (state) => (state === "stable" ? "good" : state === "empty" ? "" : "warn");

export function Groups() {
  const [query, setQuery] = useState({ q: "", start: "" });
  const path = withQuery("/groups", query);
  const { data, failure } = useData(path, 5000);
  return html`<${Head} title="Groups" sub=${data && `${count(data.total)} consumer groups`}><${Search} label="Search groups" value=${query.q} onSearch=${(q) => setQuery({ q, start: "" })} /><//><${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<${Card} title="All groups" json=${jsonOf(path)}><${Table} caption="Lag: records between what is committed and the end." rows=${data.rows} empty="No consumer group has been here yet." columns=${[
      { label: "Group", isName: true, show: (row) => html`<a href=${at(row.group)}>${row.group}</a>` }, { label: "State", show: (row) => html`<${Tag} kind=${stateKind(row.state)}>${row.state}<//>` },
      { label: "Lag", num: true, show: (row) => count(row.lag) }]} /><${Pager} data=${data} onStart=${(start) => setQuery({ ...query, start })} /><//>`}`;
}

export function Group({ group }) {
  const { data, failure, reload } = useData(at(group), 3000);
  const [asked, setAsked] = useState(false);
  return html`<${Head} title=${group}><button onClick=${() => setAsked(true)} disabled=${!data}>Move offsets …</button><//><${Problem} failure=${failure} /><${Waiting} data=${data} failure=${failure} />
    ${data && html`<div class="cards"><${Stat} label="State" value=${data.state} /><${Stat} label="Members" value=${count(data.members.length)} /><${Stat} label="Lag" value=${count(data.lag)} unit="records" /></div>
    <${Card} title="Offsets" json=${jsonOf(at(group))}><${Table} caption="By partition." rows=${data.offsets} empty="The group has committed nothing." columns=${[
      { label: "Topic", isName: true, show: (row) => html`<a href=${`/topics/${encodeURIComponent(row.topic)}`}>${row.topic}</a>` }, { label: "Partition", num: true, show: (row) => row.partition },
      { label: "Committed", num: true, show: (row) => count(row.committed) }, { label: "End", num: true, show: (row) => count(row.high_watermark) }, { label: "Lag", num: true, show: (row) => count(row.lag) }, { label: "Client", show: (row) => row.client || "–" }]} /><//>
    <${Card} title="Members"><${Table} caption="Who reads for the group now." rows=${data.members} empty="Nobody is reading for this group." columns=${[
      { label: "Client", isName: true, show: (row) => row.client }, { label: "Host", show: (row) => row.host }, { label: "Partitions", show: (row) => row.partitions.join(", ") || "none" }, { label: "Member", show: (row) => html`<span class="mono">${row.member}</span>` }]} /><//>`}
    ${asked && html`<${Move} group=${group} data=${data} onClose=${() => { setAsked(false); reload(); }} />`}`;
}

function Move({ group, data, onClose }) {
  const topics = [...new Set(data.offsets.map((row) => row.topic))];
  const [topic, setTopic] = useState(topics[0] || "");
  const [to, setTo] = useState("earliest");
  const [preview, setPreview] = useState(null);
  const change = (set) => (event) => { set(event.target.value); setPreview(null); };
  const body = { topics: [topic], to };
  const run = async () => {
    if (preview) return act("POST", at(group), { ...body, preview: false });
    const told = await act("POST", at(group), { ...body, preview: true });
    setPreview(told.rows);
    throw { message: "Nothing was changed yet.", help: "Look at what would be moved, then move it." };
  };
  return html`<${Ask} title=${`Move the offsets of ${group}`} verb=${preview ? "Move them" : "Show what would move"} kind=${preview ? "danger" : "main-action"} canDo=${topic !== "" && to !== ""} onClose=${onClose} onDo=${run}>
    <label class="field">Topic or topic/partition<input list="topics-of-group" value=${topic} onInput=${change(setTopic)} /></label><datalist id="topics-of-group">${topics.map((each) => html`<option value=${each} />`)}</datalist>
    <label class="field">To<input value=${to} onInput=${change(setTo)} /></label><p class="soft">earliest, latest, an offset, or a time such as @2026-07-31T12:00:00Z. The group's consumers must be stopped.</p>
    ${preview && html`<${Table} caption="What would be moved" rows=${preview} columns=${[{ label: "Partition", isName: true, show: (row) => `${row.topic}/${row.partition}` }, { label: "Before", num: true, show: (row) => count(row.before) }, { label: "After", num: true, show: (row) => count(row.after) }, { label: "", show: (row) => row.remark || "" }]} />`}<//>`;
}

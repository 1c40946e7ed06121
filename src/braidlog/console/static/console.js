// The frame around all pages: navigation, theme, keys, and who is shown at which address.
import { render } from "./vendor/preact.js";
import { useEffect, useState } from "./vendor/hooks.js";
import { act, html, openSession, Problem, Toast } from "./kit.js";
import { Overview } from "./overview.js";
import { Cost } from "./cost.js";
import { Uploads } from "./uploads.js";
import { Messages, Topic, Topics } from "./topics.js";
import { Group, Groups } from "./groups.js";
import { Agents, Jobs, Transactions } from "./operations.js";

const NAVIGATION = [["/", "Overview"], ["/cost", "Cost"], ["/uploads", "Uploads"], ["/topics", "Topics"], ["/groups", "Groups"],
  ["/transactions", "Transactions"], ["/agents", "Agents and stores"], ["/jobs", "Jobs"]];

function pageAt(path) {
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const [first, second, third] = parts;
  if (!first) return html`<${Overview} />`;
  if (first === "cost") return html`<${Cost} />`;
  if (first === "uploads") return html`<${Uploads} />`;
  if (first === "topics" && third === "messages") return html`<${Messages} topic=${second} key=${second} />`;
  if (first === "topics" && second) return html`<${Topic} topic=${second} key=${second} />`;
  if (first === "topics") return html`<${Topics} />`;
  if (first === "groups" && second) return html`<${Group} group=${parts.slice(1).join("/")} key=${path} />`;
  if (first === "groups") return html`<${Groups} />`;
  if (first === "transactions") return html`<${Transactions} />`;
  if (first === "agents") return html`<${Agents} />`;
  if (first === "jobs") return html`<${Jobs} />`;
  return html`<${Problem} failure=${{ message: "There is no such page.", help: "The list on the left has all." }} />`;
}

function Login({ onDone }) {
  const [failure, setFailure] = useState(null);
  const go = async (event) => {
    event.preventDefault();
    try { await act("POST", "/login", { token: new FormData(event.target).get("token") }); onDone(); } catch (found) { setFailure(found); }
  };
  return html`<div class="login"><form class="card" onSubmit=${go}><div class="brand"><img src="/static/braid.svg" alt="" />Braidlog</div>
    <label class="field">The console's token<input name="token" type="password" autocomplete="current-password" autofocus required /></label>
    <${Problem} failure=${failure} /><button class="main-action">Log in</button></form></div>`;
}

function Console() {
  const [path, setPath] = useState(location.pathname);
  const [session, setSession] = useState(null);
  const [failure, setFailure] = useState(null);
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const open = () => openSession().then((told) => { setSession(told); setFailure(null); }, setFailure);
  useEffect(() => {
    open();
    const move = () => { setPath(location.pathname); };
    const click = (event) => {
      const link = event.target.closest("a[href^='/']");
      if (!link || link.target || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      history.pushState(null, "", link.getAttribute("href"));
      move();
      scrollTo(0, 0);
    };
    const press = (event) => {
      if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
        const search = document.querySelector("[data-search]");
        if (search) { event.preventDefault(); search.focus(); }
      }
    };
    addEventListener("popstate", move);
    addEventListener("click", click);
    addEventListener("keydown", press);
    return () => { removeEventListener("popstate", move); removeEventListener("click", click); removeEventListener("keydown", press); };
  }, []);
  const turn = () => {
    const other = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = other;
    localStorage.setItem("theme", other);
    setTheme(other);
  };
  if (failure && failure.status === 401) return html`<${Login} onDone=${open} />`;
  const here = (to) => (to === "/" ? path === "/" : path.startsWith(to));
  return html`<a class="skip" href="#main">Skip to the page</a><div class="frame"><aside class="side">
    <a class="brand" href="/"><img src="/static/braid.svg" alt="" />Braidlog</a>
    <nav aria-label="Pages">${NAVIGATION.map(([to, label]) => html`<a href=${to} aria-current=${here(to) ? "page" : undefined}>${label}</a>`)}</nav>
    <div class="foot"><span>${session ? `${session.bootstrap} · ${session.version}` : ""}</span>
      <button onClick=${turn}>${theme === "dark" ? "Light" : "Dark"} theme</button></div></aside>
    <main class="main" id="main"><${Problem} failure=${failure} />${session && pageAt(path)}</main></div><${Toast} />`;
}

const kept = localStorage.getItem("theme");
document.documentElement.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
render(html`<${Console} />`, document.getElementById("console"));

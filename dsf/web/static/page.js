// The page works without this. It polls what it shows, counts ages, and knows some keys.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const duration = (seconds) => {
    const s = Math.max(0, Math.floor(seconds));
    if (s < 100) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d`;
  };
  // --- ages ---
  // Milliseconds by which this machine's clock is ahead of the hub's; a few seconds may be the way of the answer.
  let ahead = 0;
  const synchronise = (made) => {
    const difference = Date.now() - Date.parse(made.documentElement.dataset.now);
    ahead = Math.abs(difference) > 5000 ? difference : 0;
  };
  synchronise(document);
  const count = (within) => {
    const now = Date.now() - ahead;
    for (const time of within.querySelectorAll("time[data-age],time[data-until]")) {
      const at = Date.parse(time.dateTime);
      const text = "age" in time.dataset ? `${duration((now - at) / 1000)} ago`
        : at - now >= 1000 ? `in ${duration((at - now) / 1000)}` : "now";
      if (time.textContent !== text) time.textContent = text;
      if (!time.title) time.title = new Date(at).toLocaleString();
    }
  };
  count(document);
  setInterval(() => { if (!document.hidden) count(document); }, 1000);

  // --- what happens ---
  const banner = $("banner");
  const say = (text) => { if (banner.textContent !== text) banner.textContent = text; banner.hidden = !text; };
  let said, spoken = 0;
  const announce = () => {
    const text = document.querySelector("[data-announce]")?.textContent.trim() || "";
    said ??= text;
    // Not more often than every ten seconds: a screen reader must not chatter.
    if (text === said || Date.now() - spoken <= 10000) return;
    $("announce").textContent = said = text;
    spoken = Date.now();
  };
  announce();
  // What a node is: a named field or region, or a row, line, cell or problem with the first link in it; else just one of
  // its kind.
  const keyOf = (node) => {
    if (node.nodeType !== Node.ELEMENT_NODE) return node.nodeName;
    const named = /^(SECTION|DIV|NAV)$/.test(node.nodeName) && (node.getAttribute("aria-labelledby") || node.ariaLabel);
    const linked = /^(TR|LI|TD|TH|DD|ARTICLE)$/.test(node.nodeName) && node.querySelector("a")?.getAttribute("href");
    const own = node.id || node.name || named || linked;
    return `${node.nodeName} ${own || ""}`;
  };
  // Puts the nodes into this order without moving the one that has the focus: a moved node loses it.
  const arrange = (parent, nodes) => {
    const still = nodes.findIndex((node) => node.parentNode === parent && node.contains(document.activeElement));
    for (let i = still - 1; i >= 0; i--) if (nodes[i].nextSibling !== nodes[i + 1]) parent.insertBefore(nodes[i], nodes[i + 1]);
    for (let i = still + 1; i < nodes.length; i++) {
      const place = i ? nodes[i - 1].nextSibling : parent.firstChild;
      if (place !== nodes[i]) parent.insertBefore(nodes[i], place);
    }
  };
  // Changes only what differs, so that focus, what is typed and how far it is scrolled stay with what they belong to.
  const update = (old, made) => {
    if (old.isEqualNode(made)) return;
    if (old.nodeName !== made.nodeName) return old.replaceWith(made);
    if (old.nodeType !== Node.ELEMENT_NODE) { old.data = made.data; return; }
    const chosen = old.value;
    // The reader opened it: `open` is of DETAILS alone.
    for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const before = {};
    for (const one of old.childNodes) (before[keyOf(one)] ??= []).push(one);
    const nodes = [...made.childNodes].map((one) => {
      const same = before[keyOf(one)]?.shift();
      if (same) update(same, one);
      return same ?? one;
    });
    Object.values(before).flat().forEach((one) => one.remove());
    arrange(old, nodes);
    // Options may have moved.
    if (old.nodeName === "SELECT") old.value = chosen;
  };
  const show = (id, made) => {
    const after = made.getElementById(id);
    count(after);
    update($(id), after);
  };
  const parsed = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");
  const page = $("page");
  let tag = '"none"', next = 0, polling = false;
  const take = async (answer) => {
    if (answer.status === 304) return;
    const made = await parsed(answer);
    if (!answer.ok) throw new Error(made.querySelector("h1")?.textContent || `the answer is ${answer.status}`);
    synchronise(made);
    show("page", made);
    document.title = made.title;
    update(document.querySelector("link[rel=icon]"), made.querySelector("link[rel=icon]"));
    tag = answer.headers.get("ETag");
    announce();
  };
  const poll = async () => {
    if (polling || document.hidden || !page.dataset.every) return;
    polling = true;
    const began = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "If-None-Match": tag }, redirect: "manual", signal: AbortSignal.timeout(30000) });
      // The login has ended.
      if (answer.type === "opaqueredirect") return location.reload();
      await take(answer);
      say("");
      document.documentElement.dataset.polled = "yes";
    } catch (error) {
      say(`What you see is old: ${error instanceof TypeError ? "the connection is lost" : error.message}. The page tries again by itself.`);
    } finally { polling = false; }
    // A slow server is asked less often.
    clearTimeout(next);
    if (page.dataset.every) next = setTimeout(poll, Math.max(page.dataset.every * 1000, 10 * (Date.now() - began)));
  };
  if (page?.dataset.every) {
    next = setTimeout(poll, page.dataset.every * 1000);
    document.addEventListener("visibilitychange", poll);
  }
  const form = document.querySelector(".whatif");
  let questions = 0;
  form?.addEventListener("change", async () => {
    const number = ++questions;
    const answer = await fetch(`${form.action}?${new URLSearchParams(new FormData(form))}`, { redirect: "manual" }).catch(() => null);
    const made = answer?.ok && await parsed(answer);
    // Answers come in any order: only that to the newest question counts.
    if (number !== questions) return;
    if (made) show("answer", made);
    // The login has ended, or something is wrong: the page itself says what.
    else form.submit();
  });

  // --- keys ---
  const keys = $("keys");
  $("keys-open").hidden = false;
  $("keys-open").onclick = () => keys.showModal();
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input,textarea,select");
    if (event.key === "/" && !typing) { event.preventDefault(); $("q").focus(); $("q").select(); }
    else if (event.key === "?" && !typing) { event.preventDefault(); keys.showModal(); }
    else if (event.key.startsWith("Arrow")) move(event);
  });
  const move = (event) => {
    const cell = event.target.closest?.(".matrix td, .matrix th");
    if (!cell) return;
    const row = cell.parentElement, body = [...cell.closest("table").rows];
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const link = body[body.indexOf(row) + down]?.cells[cell.cellIndex + right]?.querySelector("a");
    if (link) { event.preventDefault(); link.focus(); }
  };
})();

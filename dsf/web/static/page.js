// The page works without this. It follows what happens, counts ages, and knows some keys.
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
  const count = (within) => {
    const now = Date.now();
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
  let said = "", spoken = 0;
  const announce = () => {
    const text = document.querySelector("[data-announce]")?.textContent.trim() || "";
    // Not more often than every ten seconds: a screen reader must not chatter.
    if (said && text !== said && Date.now() - spoken > 10000) { $("announce").textContent = text; spoken = Date.now(); }
    said = said && Date.now() - spoken <= 10000 && text !== said ? said : text;
  };
  announce();
  const places = "a,button,input,select,[tabindex]";
  const replace = (id, html) => {
    const old = $(id);
    if (!old) return;
    const active = document.activeElement;
    const place = old.contains(active) ? [...old.querySelectorAll(places)].indexOf(active) : -1;
    const typed = [...old.querySelectorAll("input,select")].map((one) => one.value);
    const scrolled = [...old.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollLeft]);
    const template = document.createElement("template");
    template.innerHTML = html;
    count(template.content);
    old.replaceWith(template.content);
    const made = $(id);
    made.querySelectorAll("input,select").forEach((one, number) => { one.value = typed[number] ?? one.value; });
    if (place >= 0) [...made.querySelectorAll(places)][place]?.focus({ preventScroll: true });
    for (const one of made.querySelectorAll(".scroll")) {
      const left = scrolled.find(([name]) => name === one.getAttribute("aria-label"));
      if (left) one.scrollLeft = left[1];
    }
  };
  const page = $("page");
  if (page?.dataset.live && window.EventSource) {
    const source = new EventSource(page.dataset.live);
    let lost = 0;
    source.addEventListener("patch", (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
      document.documentElement.dataset.patched = event.lastEventId;
      announce();
    });
    source.addEventListener("trouble", (event) => {
      const { text } = JSON.parse(event.data);
      say(text ? `What you see is old: the page cannot read the fleet (${text}). It goes on by itself.` : "");
    });
    source.onopen = () => { clearTimeout(lost); lost = 0; say(""); document.documentElement.dataset.open = "yes"; };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) {
        lost ||= setTimeout(() => say("What you see is old: the connection is lost. The page tries again by itself."), 1500);
        return;
      }
      // The browser does not retry after an answer that is not a stream: too many pages are open, or the login has ended.
      clearTimeout(lost);
      say("This page cannot be followed now. It loads itself anew every 30 seconds.");
      setTimeout(() => location.reload(), 30000);
    };
    addEventListener("pagehide", () => source.close());
  }

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

"use strict";
(() => {
  const every = 2000, state = document.getElementById("state"), pause = document.getElementById("pause");
  let paused = false;
  const say = (kind, text) => { state.className = kind; state.lastElementChild.textContent = text; };
  pause.hidden = false;
  pause.onclick = () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    say(paused ? "paused" : "", paused ? "paused" : "live");
  };
  // What the reader looks at stays where it is: the first thing with a name in sight.
  const anchor = () => {
    for (const e of document.querySelectorAll("[data-key]")) {
      const top = e.getBoundingClientRect().top;
      if (top >= 0 && top < innerHeight) return { key: e.dataset.key, top };
    }
  };
  const find = key => document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  const renew = text => {
    const next = new DOMParser().parseFromString(text, "text/html");
    const aside = new Map([...document.querySelectorAll(".wide")].map(e => [e.dataset.key, e.scrollLeft]));
    const at = scrollY > 0 ? anchor() : null;
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = next.getElementById(part.id);
      if (!fresh) { location.reload(); return; }
      // What is open is being read: its list waits, or it would soon be gone.
      if (part.querySelector("details[open]")) continue;
      if (fresh.innerHTML !== part.innerHTML || fresh.className !== part.className) part.replaceWith(document.adoptNode(fresh));
    }
    for (const e of document.querySelectorAll(".wide")) e.scrollLeft = aside.get(e.dataset.key) || 0;
    const same = at && find(at.key);
    if (same) scrollBy(0, same.getBoundingClientRect().top - at.top);
  };
  const turn = async () => {
    const reading = !getSelection().isCollapsed;
    if (!paused && !reading && !document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        if (!answer.ok) throw new Error(answer.status);
        const text = await answer.text();
        if (!paused && getSelection().isCollapsed) renew(text);
        if (!paused) say("", "live");
      } catch (e) {
        say("stale", "the gateway does not answer; this is old");
      }
    }
    setTimeout(turn, every);
  };
  setTimeout(turn, every);
})();

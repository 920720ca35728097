"use strict";
(() => {
  const every = 2000, state = document.getElementById("state"), pause = document.getElementById("pause");
  let paused = false, heard = new Date();
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
  const named = (key, within = document) => within.querySelector(`[data-key="${CSS.escape(key)}"]`);
  // So does the keyboard: at the same link or box of what has a name, or of a part of the page.
  const stops = box => [box, ...box.querySelectorAll("a, summary, [tabindex]")];
  const focus = () => {
    const e = document.activeElement, box = e.closest("[data-live]") && e.closest("[data-key], [data-live]");
    return box && { key: box.dataset.key, id: box.id, at: stops(box).indexOf(e) };
  };
  const renew = text => {
    const next = new DOMParser().parseFromString(text, "text/html");
    const aside = new Map([...document.querySelectorAll(".wide")].map(e => [e.dataset.key, e.scrollLeft]));
    const at = scrollY > 0 ? anchor() : null, on = focus();
    document.title = next.title;
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = next.getElementById(part.id);
      if (!fresh) { location.reload(); return; }
      // What the reader has opened is being read: its list waits, or it would soon be gone.
      if ([...part.querySelectorAll("details[open]")].some(e => !named(e.dataset.key, fresh)?.open)) continue;
      if (fresh.innerHTML !== part.innerHTML || fresh.className !== part.className) part.replaceWith(document.adoptNode(fresh));
    }
    for (const e of document.querySelectorAll(".wide")) e.scrollLeft = aside.get(e.dataset.key) || 0;
    const same = at && named(at.key);
    if (same) scrollBy(0, same.getBoundingClientRect().top - at.top);
    const box = on && (on.key ? named(on.key) : document.getElementById(on.id));
    if (box && document.activeElement === document.body) stops(box)[on.at]?.focus({ preventScroll: true });
  };
  // Nothing on the page is known to be true any more.
  const lost = () => {
    const since = "not heard from since " + heard.toLocaleTimeString([], { timeZoneName: "short" });
    say("stale", since);
    const verdict = document.getElementById("verdict");
    verdict.className = "off";
    verdict.querySelector("b").textContent = `The gateway does not answer; ${since}. Then:`;
    document.title = "? The gateway does not answer. endpick";
  };
  const refresh = async () => {
    const reading = !getSelection().isCollapsed;
    if (!paused && !reading && !document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(5 * every) });
        if (!answer.ok) throw new Error(answer.status);
        const text = await answer.text();
        heard = new Date();
        if (!paused && getSelection().isCollapsed) renew(text);
        if (!paused) say("", "live");
      } catch (e) {
        lost();
      }
    }
    setTimeout(refresh, every);
  };
  setTimeout(refresh, every);
})();

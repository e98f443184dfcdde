// Refreshes what is live, and copies ids. Every page works without it.
"use strict";
(() => {
  const EVERY = 2000;

  // What is live: the server renders it again, and this puts it in the place of what was.
  const live = document.querySelector("[data-live]");
  const pulse = document.getElementById("pulse");
  if (live && pulse) {
    const word = document.getElementById("pulse-word");
    const asOf = document.getElementById("as-of");
    const said = document.getElementById("pulse-said");
    const plain = word.textContent;
    let last = asOf.textContent;
    let timer = 0;
    let asking = false;
    let lost = false;

    // The time changes without a word to whoever listens; only losing and finding it is said.
    const tell = (gone) => {
      asOf.textContent = last;
      if (gone === lost) return;
      lost = gone;
      word.textContent = gone ? "Connection lost, last update" : plain;
      said.textContent = gone ? `Connection lost, last update ${last} UTC` : "Connected again";
      pulse.classList.toggle("lost", gone);
    };

    const selecting = () => {
      const selection = document.getSelection();
      return selection && !selection.isCollapsed && live.contains(selection.anchorNode);
    };

    const put = (html) => {
      const fresh = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
      if (!fresh || !fresh.dataset.at) throw new Error("that is not the fragment");
      last = fresh.dataset.at;
      // Whoever is reading, selecting or tabbing through is not disturbed.
      if (selecting()) return;
      for (const open of live.querySelectorAll("details[open][id]")) {
        const same = fresh.querySelector(`#${CSS.escape(open.id)}`);
        if (same) same.open = true;
      }
      const focused = live.contains(document.activeElement) ? document.activeElement : null;
      const path = focused && focused.id ? `#${CSS.escape(focused.id)}` : null;
      if (focused && !path) return;
      const scrolled = [...live.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
      live.replaceChildren(fresh);
      live.querySelectorAll(".scroll").forEach((part, at) => { part.scrollLeft = scrolled[at] || 0; });
      if (path) live.querySelector(path)?.focus({ preventScroll: true });
    };

    const ask = async () => {
      if (asking || document.hidden) return;
      asking = true;
      try {
        const answer = await fetch(live.dataset.live, {
          // Nobody asked: a page that is left open must not keep its session alive.
          headers: { Accept: "text/html", "X-Semel-Background": "1" },
          credentials: "same-origin",
          cache: "no-store",
          redirect: "error",
          signal: AbortSignal.timeout(10000),
        });
        // The session is over: the page itself says where to log in.
        if (answer.status === 401) return location.reload();
        if (!answer.ok) throw new Error(String(answer.status));
        put(await answer.text());
        tell(false);
      } catch {
        tell(true);
      } finally {
        asking = false;
      }
    };

    const run = () => {
      clearInterval(timer);
      if (!document.hidden) {
        timer = setInterval(ask, EVERY);
        ask();
      }
    };
    document.addEventListener("visibilitychange", run);
    run();
  }

  // A choice is made by choosing.
  for (const form of document.querySelectorAll("form[data-auto]")) {
    form.addEventListener("change", () => form.requestSubmit());
    form.classList.add("auto");
  }

  // A button beside what is often copied.
  for (const text of document.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy ${text.textContent}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      } catch {
        // Without TLS there is no clipboard: it is selected instead.
        getSelection().selectAllChildren(text);
      }
    });
    text.after(button);
  }
})();

// Refreshes the live part of the overview, and copies ids. Every page works without it.
"use strict";
(() => {
  const REFRESH_MS = 2000;

  // The server renders the live part; this replaces the old one.
  const live = document.querySelector("[data-live]");
  const pulse = document.getElementById("pulse");
  if (live && pulse) {
    const label = document.getElementById("pulse-label");
    const asOf = document.getElementById("as-of");
    const announcement = document.getElementById("pulse-announcement");
    const connectedText = label.textContent;
    let last = asOf.textContent;
    let timer = 0;
    let fetching = false;
    let lost = false;

    // Screen readers hear only the loss and return of the connection, not each update.
    const setConnection = (isLost) => {
      asOf.textContent = last;
      if (isLost === lost) return;
      lost = isLost;
      label.textContent = isLost ? "Connection lost, last update" : connectedText;
      announcement.textContent = isLost ? `Connection lost, last update ${last} UTC` : "Reconnected";
      pulse.classList.toggle("lost", isLost);
    };

    const selecting = () => {
      const selection = document.getSelection();
      return selection && !selection.isCollapsed && live.contains(selection.anchorNode);
    };

    const replaceLive = (html) => {
      const fresh = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
      if (!fresh || !fresh.dataset.at) throw new Error("the response is not the fragment");
      last = fresh.dataset.at;
      // Does not disturb a selection or the keyboard focus.
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

    const refresh = async () => {
      if (fetching || document.hidden) return;
      fetching = true;
      try {
        const answer = await fetch(live.dataset.live, {
          // A page that is left open must not keep its session alive.
          headers: { Accept: "text/html", "X-Semel-Background": "1" },
          credentials: "same-origin",
          cache: "no-store",
          redirect: "error",
          signal: AbortSignal.timeout(10000),
        });
        // The session ended: reloading shows the login page.
        if (answer.status === 401) return location.reload();
        if (!answer.ok) throw new Error(String(answer.status));
        replaceLive(await answer.text());
        setConnection(false);
      } catch {
        setConnection(true);
      } finally {
        fetching = false;
      }
    };

    const run = () => {
      clearInterval(timer);
      if (!document.hidden) {
        timer = setInterval(refresh, REFRESH_MS);
        refresh();
      }
    };
    document.addEventListener("visibilitychange", run);
    run();
  }

  // Submits a filter form on change.
  for (const form of document.querySelectorAll("form[data-auto]")) {
    form.addEventListener("change", () => form.requestSubmit());
    form.classList.add("auto");
  }

  // Adds copy buttons.
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
        // Without TLS there is no clipboard: selects the text instead.
        getSelection().selectAllChildren(text);
      }
    });
    text.after(button);
  }
})();

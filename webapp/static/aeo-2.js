// What every page does by itself: times in the viewer's zone, htmx's CSRF header, theme, copying, confirming, live parts.
(() => {
  "use strict";

  const words = JSON.parse(document.body.dataset.words || "{}");
  const say = (key, values = {}) => (words[key] || key).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const two = (number) => String(number).padStart(2, "0");

  /** Writes seconds as the server does, one unit only where `coarse`. */
  function span(seconds, coarse = false) {
    const whole = Math.max(0, Math.floor(seconds));
    if (!coarse && seconds > 0 && seconds < 10 && seconds !== whole) return say("s", { n: (Math.floor(seconds * 10) / 10).toFixed(1) });
    const parts = [
      ["d", Math.floor(whole / 86400)],
      ["h", Math.floor((whole % 86400) / 3600)],
      ["min", Math.floor((whole % 3600) / 60)],
      ["s", whole % 60],
    ];
    const first = parts.findIndex(([, n]) => n > 0);
    if (first < 0) return say("s", { n: 0 });
    return parts
      .slice(first, first + (coarse ? 1 : 2))
      .map(([unit, n]) => say(unit, { n }))
      .join(" ");
  }

  function clock(date, seconds = true) {
    return `${two(date.getHours())}:${two(date.getMinutes())}${seconds ? `:${two(date.getSeconds())}` : ""}`;
  }

  function minute(date, seconds = false) {
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(date, seconds)}`;
  }

  function ago(date) {
    const seconds = (Date.now() - date.getTime()) / 1000;
    if (Math.abs(seconds) > 7 * 86400) return minute(date);
    if (Math.abs(seconds) < 1) return say("now");
    return say(seconds < 0 ? "in" : "ago", { span: span(Math.abs(seconds), true) });
  }

  const STYLES = { minute: (date) => minute(date), second: (date) => minute(date, true), clock: (date) => clock(date), ago };

  function writeTimes(root, only = "time[data-time]") {
    for (const element of root.querySelectorAll(only)) {
      const date = new Date(element.dateTime);
      if (!Number.isNaN(date.getTime())) element.textContent = (STYLES[element.dataset.time] || STYLES.minute)(date);
    }
  }

  window.aeo = { say, span, clock, minute };
  writeTimes(document);
  setInterval(() => document.hidden || writeTimes(document, 'time[data-time="ago"]'), 10000);

  /** Lets the keyboard scroll what is longer than its box. */
  function reachBoxes(root) {
    for (const box of root.querySelectorAll(".scroll:not([tabindex]), .log:not([tabindex]), pre:not([tabindex])"))
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
  }
  reachBoxes(document);

  // Light or dark. Choosing what the system has anyway follows the system again.

  const system = matchMedia("(prefers-color-scheme: dark)");
  const themeChanged = () => document.dispatchEvent(new CustomEvent("aeo:theme"));
  system.addEventListener("change", themeChanged);

  function switchTheme() {
    const root = document.documentElement;
    const now = root.dataset.theme || (system.matches ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    const own = next !== (system.matches ? "dark" : "light");
    if (own) root.dataset.theme = next;
    else delete root.dataset.theme;
    document.cookie = `aeo_theme=${own ? next : ""}; path=/; max-age=${own ? 31536000 : 0}; samesite=lax`;
    themeChanged();
  }

  // Buttons

  async function copy(button) {
    const shown = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      // Without https there is no clipboard; what is selected can be copied by hand.
      const field = document.createElement("textarea");
      field.value = button.dataset.copy;
      button.after(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    button.textContent = say("copied");
    setTimeout(() => (button.textContent = shown), 1500);
  }

  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    if (target?.closest("[data-theme-switch]")) switchTheme();
    const button = target?.closest("[data-copy]");
    if (button) copy(button);
  });

  // In the capture phase, before htmx sees the event.
  function confirmFirst(event) {
    const element = event.type === "submit" ? event.submitter?.closest("[data-confirm]") || event.target : event.target.closest?.("a[data-confirm], button[type=button][data-confirm]");
    if (element?.dataset?.confirm && !confirm(element.dataset.confirm)) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  }
  document.addEventListener("submit", confirmFirst, true);
  document.addEventListener("click", confirmFirst, true);

  // A form is sent once, however often its button is pressed.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    const buttons = event.target.querySelectorAll("button:not([type=button])");
    setTimeout(() => buttons.forEach((button) => (button.disabled = true)));
    setTimeout(() => buttons.forEach((button) => (button.disabled = false)), 5000);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const search = document.querySelector("main input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  });

  // htmx

  document.addEventListener("htmx:configRequest", (event) => {
    const token = document.querySelector('meta[name="csrf-token"]');
    if (token && event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = token.content;
  });

  // What would be typed while the answer is under way would be lost with it: neither the form's own request nor that of a
  // field in it (the executor) leaves it open to typing. Counting, a GET, replaces no field.
  let focusBefore = null;

  function busy(event, inert) {
    const form = event.detail.requestConfig?.verb === "get" ? null : event.detail.elt.closest("form[data-busy]");
    // Where the answer leads to another page, that one may be long in coming: nothing is sent a second time meanwhile.
    if (!form || (!inert && event.detail.xhr.getResponseHeader("HX-Redirect"))) return;
    if (inert) focusBefore = focusOf(form);
    form.inert = inert;
  }
  document.addEventListener("htmx:beforeRequest", (event) => busy(event, true));
  document.addEventListener("htmx:afterRequest", (event) => busy(event, false));
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) for (const form of document.querySelectorAll("form[data-busy]")) form.inert = false;
  });

  const isPoll = (detail) =>
    !detail.requestConfig?.triggeringEvent && /\bevery\b/.test(detail.elt?.getAttribute("hx-trigger") || "");

  // A page nobody looks at asks for nothing.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && isPoll(event.detail)) event.preventDefault();
  });

  // A part that asks by itself stands back while somebody presses a button, which would be replaced below the finger and the
  // click be lost, and while what somebody asked for is under way to that part, which would not find its place any more.
  const PRESS_MS = 10000;
  const asked = new Set();
  let pressedAt = -Infinity;
  document.addEventListener("pointerdown", () => (pressedAt = performance.now()), true);
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => (pressedAt = -Infinity), true);
  document.addEventListener("htmx:beforeRequest", ({ detail }) => isPoll(detail) || asked.add(detail.target));
  document.addEventListener("htmx:afterRequest", ({ detail }) => isPoll(detail) || asked.delete(detail.target));

  const inUse = (part) => asked.has(part) || performance.now() - pressedAt < PRESS_MS;

  const selecting = (part) => {
    const selection = getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  };

  const typing = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select");

  /** How to find the focused element of a part again in what replaces it. */
  function focusOf(part) {
    const element = document.activeElement;
    if (!element || element === part || !part.contains(element)) return null;
    if (element.id) return `#${CSS.escape(element.id)}`;
    if (element.hasAttribute("href")) return `a[href="${CSS.escape(element.getAttribute("href"))}"]`;
    if (element.matches("summary") && element.parentElement.id) return `#${CSS.escape(element.parentElement.id)} > summary`;
    return null;
  }

  let kept = null;

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target } = event.detail;
    if (new URL(xhr.responseURL, location.href).pathname.endsWith("/sign-in")) {
      event.detail.shouldSwap = false;
      location.reload(); // the session has ended
      return;
    }
    // 286 ends the asking, and brings the last state: it does not wait for long.
    if (isPoll(event.detail) && (inUse(target) || (xhr.status !== 286 && (selecting(target) || typing(target))))) {
      event.detail.shouldSwap = false;
      return;
    }
    kept = {
      // What became inert has lost its focus.
      focus: focusOf(target) || (focusBefore && target.querySelector(focusBefore) ? focusBefore : null),
      open: [...target.querySelectorAll("details[id]")].map((details) => [details.id, details.open]),
      scrolled: [...target.querySelectorAll(".scroll[id], .log[id]")].map((box) => [box.id, box.scrollTop, box.scrollLeft]),
    };
  });

  document.addEventListener("htmx:afterSwap", (event) => {
    if (!kept) return;
    for (const [id, open] of kept.open) {
      const details = document.getElementById(id);
      if (details) details.open = open;
    }
    for (const [id, top, left] of kept.scrolled) document.getElementById(id)?.scrollTo(left, top);
    // A link may lead from several parts to the same place.
    const focused = kept.focus && (event.target.querySelector(kept.focus) || document.querySelector(kept.focus));
    focused?.focus({ preventScroll: true });
    kept = null;
  });

  document.addEventListener("htmx:load", (event) => {
    const part = event.detail.elt;
    writeTimes(part.parentElement || part);
    reachBoxes(part.parentElement || part);
  });

  // What is shown grows old when the controller does not answer: say so.

  let offline = null;

  function lost() {
    if (offline) return;
    offline = document.createElement("p");
    offline.className = "notice bad";
    offline.setAttribute("role", "status");
    offline.textContent = say("offline", { time: clock(new Date()) });
    document.querySelector("main").prepend(offline);
  }

  document.addEventListener("htmx:sendError", lost);
  document.addEventListener("htmx:responseError", (event) => event.detail.xhr.status >= 500 && lost());
  document.addEventListener("htmx:afterOnLoad", () => {
    offline?.remove();
    offline = null;
  });
})();

// The trial's page: logs that grow while they are looked at, folding all steps at once.
(() => {
  "use strict";

  // Characters of a log kept on the page; what is above can be asked for again.
  const KEPT = 2000000;
  const AGAIN = 4000;
  const tails = new Map();

  /** Adds pieces of text, each with its classes; text only, never markup. */
  function add(box, runs, note) {
    const piece = document.createElement("span");
    piece.className = "window";
    if (note) piece.append(Object.assign(document.createElement("span"), { className: "note-line", textContent: `\n${note}\n` }));
    for (const [classes, text] of runs) {
      const run = document.createElement("span");
      if (classes) run.className = classes;
      run.textContent = text;
      piece.append(run);
    }
    box.append(piece);
    let size = box.textContent.length;
    for (const old of [...box.querySelectorAll(":scope > .window")]) {
      if (size <= KEPT) break;
      size -= old.textContent.length;
      old.remove();
    }
  }

  class Tail {
    constructor(box) {
      this.box = box;
      this.at = box.dataset.at;
      this.card = box.closest(".card") || document;
      this.toEnd();
      this.open();
    }

    toEnd() {
      this.box.scrollTop = this.box.scrollHeight;
      this.put = this.top = this.box.scrollTop;
    }

    say(word) {
      const badge = this.card.querySelector("[data-tail-state]");
      if (badge && badge.textContent !== word) badge.textContent = word;
    }

    get follows() {
      return this.card.querySelector("[data-follow]")?.checked ?? true;
    }

    open() {
      if (this.source || this.ended || document.hidden) return;
      const source = (this.source = new EventSource(`${this.box.dataset.tail}&at=${encodeURIComponent(this.at)}`));
      source.onopen = () => this.say(this.box.dataset.live);
      source.addEventListener("text", (event) => this.take(event));
      source.addEventListener("end", () => {
        this.ended = true;
        this.close();
        this.say(this.box.dataset.ended);
      });
      source.onerror = () => {
        if (this.source !== source) return;
        this.say(this.box.dataset.waits);
        // The browser tries again by itself unless the answer was an error.
        if (source.readyState === EventSource.CLOSED) {
          this.close();
          setTimeout(() => this.box.isConnected && this.open(), AGAIN);
        }
      };
    }

    close() {
      this.source?.close();
      this.source = null;
    }

    take(event) {
      const { runs, left_out: leftOut, anew } = JSON.parse(event.data);
      this.at = event.lastEventId;
      const notes = [];
      if (anew) notes.push(this.box.dataset.anew);
      if (leftOut) notes.push(this.box.dataset.leftOut.replace("{n}", leftOut.toLocaleString()));
      if (runs.length || notes.length) add(this.box, runs, notes.join(" "));
      if (this.follows) this.toEnd();
    }
  }

  function look() {
    for (const [box, tail] of tails) {
      if (box.isConnected) continue;
      tail.close();
      tails.delete(box);
    }
    for (const box of document.querySelectorAll("[data-tail]")) {
      if (tails.has(box)) continue;
      tails.set(box, new Tail(box));
    }
  }

  // A page nobody looks at holds no connection.
  document.addEventListener("visibilitychange", () => {
    for (const tail of tails.values()) document.hidden ? tail.close() : tail.open();
  });
  window.addEventListener("pagehide", () => tails.forEach((tail) => tail.close()));
  document.addEventListener("htmx:afterSwap", () => setTimeout(look));

  // Scrolling up ends following, scrolling to the end begins it. The wheel is heard first: a piece that comes in between
  // would bring the end back. So would the first pixels of the way up, and word of our own scrolling, which comes late.
  document.addEventListener(
    "wheel",
    (event) => {
      const box = event.deltaY < 0 && event.target instanceof Element && event.target.closest("[data-tail]");
      const follow = box && box.closest(".card")?.querySelector("[data-follow]");
      if (follow) follow.checked = false;
    },
    { capture: true, passive: true },
  );
  document.addEventListener(
    "scroll",
    (event) => {
      const box = event.target;
      const tail = tails.get(box);
      if (!tail || box.scrollTop === tail.put) return;
      const near = box.scrollTop < tail.top ? 1 : 40;
      [tail.put, tail.top] = [null, box.scrollTop];
      const follow = box.closest(".card")?.querySelector("[data-follow]");
      if (follow) follow.checked = box.scrollTop + box.clientHeight >= box.scrollHeight - near;
    },
    true,
  );

  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-fold]");
    if (!button) return;
    const open = button.dataset.unfolded !== "1";
    for (const details of document.querySelectorAll(`#${button.dataset.fold} .call`)) details.open = open;
    button.dataset.unfolded = open ? "1" : "";
    [button.textContent, button.dataset.other] = [button.dataset.other, button.textContent];
  });

  document.addEventListener("change", (event) => {
    if (event.target instanceof Element && event.target.matches("select#file")) event.target.form.requestSubmit();
  });

  for (const box of document.querySelectorAll("[data-at-end]")) box.scrollTop = box.scrollHeight;
  look();
})();

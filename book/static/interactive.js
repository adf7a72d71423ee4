// Makes the parts of a page that `companion.interactive` writes answer to a hand. Without this file they are complete
// and still. Controls are a browser's own, so that keys, focus and screen readers work as they do everywhere.
"use strict";

(() => {
  const element = (name, properties = {}, children = []) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // Steps: data-from="n" is there from step n on, data-at="n" at step n only; data-captions has a sentence for each.
  const stepped = (part) => {
    const captions = JSON.parse(part.dataset.captions);
    const last = captions.length - 1;
    const placed = [...part.querySelectorAll("[data-from], [data-at]")];
    const slider = element("input", { type: "range", min: 0, max: last, step: 1, value: 0 });
    slider.setAttribute("aria-label", part.getAttribute("aria-label"));
    const back = element("button", { type: "button", textContent: "Back" });
    const on = element("button", { type: "button", textContent: "Next" });
    const play = element("button", { type: "button", textContent: "Play" });
    const caption = element("p", { className: "caption" });
    caption.setAttribute("aria-live", "polite");
    let timer = null;

    const stop = () => {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
    };
    const show = (step) => {
      slider.value = step;
      for (const one of placed) {
        one.hidden = "at" in one.dataset ? Number(one.dataset.at) !== step : Number(one.dataset.from) > step;
      }
      caption.textContent = captions[step];
      slider.setAttribute("aria-valuetext", `step ${step} of ${last}`);
      back.disabled = step === 0;
      on.disabled = step === last;
      if (step === last) stop();
    };
    const go = (step) => {
      stop();
      show(Math.min(Math.max(step, 0), last));
    };
    slider.addEventListener("input", () => go(Number(slider.value)));
    back.addEventListener("click", () => go(Number(slider.value) - 1));
    on.addEventListener("click", () => go(Number(slider.value) + 1));
    play.addEventListener("click", () => {
      if (timer !== null) return stop();
      if (Number(slider.value) === last) show(0);
      play.textContent = "Pause";
      timer = setInterval(() => show(Number(slider.value) + 1), 900);
    });
    for (const still of part.querySelectorAll(".without-scripts")) still.classList.add("live");
    window.addEventListener("beforeprint", () => placed.forEach((one) => (one.hidden = false)));
    window.addEventListener("afterprint", () => show(Number(slider.value)));
    part.prepend(element("div", { className: "controls" }, [back, on, play, slider]), caption);
    show(0);
  };

  // The entropy bracket: floor exp(-H), ceiling the root of H = H_b(p) + (1 - p) ln(V - 1) on [1/V, 1].
  const spike = (p, size) => {
    const term = (x) => (x > 0 ? -x * Math.log(x) : 0);
    return term(p) + term(1 - p) + (1 - p) * Math.log(size - 1);
  };
  const ceiling = (h, size) => {
    if (h <= 0) return 1;
    if (h >= Math.log(size)) return 1 / size;
    let [low, high] = [1 / size, 1];
    for (let i = 0; i < 80; i++) {
      const middle = (low + high) / 2;
      if (spike(middle, size) > h) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  };

  const SVG = "http://www.w3.org/2000/svg";
  const drawn = (name, attributes, text = "") => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };

  const bracket = (part) => {
    const sizes = JSON.parse(part.dataset.vocabularies);
    const names = Object.keys(sizes);
    const [width, height, left, bottom] = [560, 280, 46, 36];
    const choice = element("select", {}, names.map((name) => element("option", { textContent: name })));
    choice.setAttribute("aria-label", "vocabulary");
    const slider = element("input", { type: "range", min: 0, step: 0.01, value: 2 });
    slider.setAttribute("aria-label", "entropy in nats");
    const caption = element("p", { className: "caption" });
    caption.setAttribute("aria-live", "polite");
    const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });

    const show = () => {
      const size = sizes[choice.value];
      const top = Math.log(size);
      slider.max = top;
      const h = Math.min(Number(slider.value), top);
      const [floor, roof] = [Math.exp(-h), ceiling(h, size)];
      const x = (nats) => left + (nats / top) * (width - left - 10);
      const y = (mass) => 10 + (1 - mass) * (height - bottom - 10);
      const line = (f) =>
        Array.from({ length: 201 }, (_, i) => (i / 200) * top)
          .map((nats) => `${x(nats).toFixed(1)},${y(f(nats)).toFixed(1)}`)
          .join(" ");
      const ticks = [0, 0.25, 0.5, 0.75, 1].map((mass) =>
        drawn("text", { x: left - 6, y: y(mass) + 4, "text-anchor": "end" }, String(mass)),
      );
      for (let nats = 0; nats <= top; nats += top > 6 ? 2 : 0.5) {
        ticks.push(drawn("text", { x: x(nats), y: height - bottom + 18, "text-anchor": "middle" }, String(nats)));
      }
      picture.replaceChildren(
        drawn("line", { x1: left, y1: y(0), x2: width - 10, y2: y(0), class: "axis" }),
        drawn("line", { x1: left, y1: y(0), x2: left, y2: y(1), class: "axis" }),
        ...ticks,
        drawn("text", { x: (left + width) / 2, y: height - 2, "text-anchor": "middle" }, "entropy H, nats"),
        drawn("text", { x: width - 10, y: 22, "text-anchor": "end" }, "mass of the likeliest token"),
        drawn("polyline", { points: line((nats) => ceiling(nats, size)), class: "ceiling" }),
        drawn("polyline", { points: line((nats) => Math.exp(-nats)), class: "floor" }),
        drawn("line", { x1: x(h), y1: y(floor), x2: x(h), y2: y(roof), class: "between" }),
        drawn("circle", { cx: x(h), cy: y(roof), r: 5, class: "ceiling" }),
        drawn("circle", { cx: x(h), cy: y(floor), r: 5, class: "floor" }),
      );
      const said = `H = ${h.toFixed(2)} nats: the likeliest token has between ${floor.toFixed(4)} and ${roof.toFixed(4)}.`;
      caption.textContent = said;
      picture.setAttribute("aria-label", `Floor and ceiling of the largest mass. ${said}`);
      slider.setAttribute("aria-valuetext", `${h.toFixed(2)} nats`);
    };
    choice.addEventListener("change", show);
    slider.addEventListener("input", show);
    part.replaceChildren(element("div", { className: "controls" }, [choice, slider]), caption, picture);
    show();
  };

  const start = () => {
    document.querySelectorAll(".stepped").forEach(stepped);
    document.querySelectorAll(".bracket").forEach(bracket);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

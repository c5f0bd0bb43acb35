
"use strict";
// The page's data; see evaluation/pages/maps.py for what it holds.
const { tokens, kinds } = JSON.parse(document.getElementById("content").textContent);
const [kindBox, layerBox, headBox, sheet, mark, scale, low, high, unit, pair, text] = [
  "kind", "layer", "head", "sheet", "mark", "scale", "low", "high", "unit", "pair", "text",
].map((id) => document.getElementById(id));
const count = tokens.length;
let query = count - 1;
let key = 0;
let values = new Float32Array(0);

function bytes(encoded) {
  return Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
}

// IEEE 754 half precision: one sign bit, five of the exponent, ten of the fraction.
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}

function decode(encoded) {
  const raw = bytes(encoded);
  return Float32Array.from({ length: raw.length / 2 }, (_, at) => half(raw[2 * at] | (raw[2 * at + 1] << 8)));
}

function kind() {
  return kinds[kindBox.selectedIndex];
}

function at(row, column) {
  return values[(row * (row + 1)) / 2 + column];
}

// Number of the colour, 0 to 255.
function shade(value) {
  const { low, high, rooted, signed } = kind();
  const bend = (x) => (rooted ? Math.sign(x) * Math.sqrt(Math.abs(x)) : x);
  const share = (bend(value) - bend(low)) / (bend(high) - bend(low));
  return Math.round(255 * Math.min(1, Math.max(0, share)));
}

function fill(box, names) {
  const before = box.value;
  box.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(before)) box.value = before;
}

const distinct = (names) => [...new Set(names)];

function chooseKind() {
  fill(layerBox, distinct(kind().maps.map((map) => map.layer)));
  chooseLayer();
}

function chooseLayer() {
  fill(headBox, kind().maps.filter((map) => map.layer === layerBox.value).map((map) => map.head));
  chooseHead();
}

function chooseHead() {
  const found = kind().maps.find((map) => map.layer === layerBox.value && map.head === headBox.value);
  values = decode(found.values);
  draw();
  show();
}

function draw() {
  const colours = bytes(kind().colours);
  const paint = sheet.getContext("2d");
  const image = paint.createImageData(count, count);
  for (let row = 0; row < count; row++) {
    for (let column = 0; column <= row; column++) {
      const colour = 3 * shade(at(row, column));
      image.data.set([...colours.subarray(colour, colour + 3), 255], 4 * (row * count + column));
    }
  }
  paint.putImageData(image, 0, 0);
  const bar = scale.getContext("2d");
  const line = bar.createImageData(256, 1);
  for (let step = 0; step < 256; step++) line.data.set([...colours.subarray(3 * step, 3 * step + 3), 255], 4 * step);
  bar.putImageData(line, 0, 0);
  low.textContent = kind().low.toPrecision(3);
  high.textContent = kind().high.toPrecision(3);
  unit.textContent = kind().unit;
}

const marks = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const quoted = (place) => `${place + 1} “${tokens[place].replace(/[\n\r\t]/g, (letter) => marks[letter])}”`;

function show() {
  const step = 100 / count;
  Object.assign(mark.style, {
    left: `${key * step}%`, top: `${query * step}%`, width: `${step}%`, height: `${step}%`,
  });
  const value = key <= query ? at(query, key).toPrecision(4) : "not seen: the key is behind the query";
  pair.textContent = `query ${quoted(query)}, key ${quoted(key)}: ${value}`;
  const colours = bytes(kind().colours);
  [...text.children].forEach((word, place) => {
    word.setAttribute("aria-pressed", String(place === query));
    const colour = place <= query ? 3 * shade(at(query, place)) : -1;
    word.style.setProperty("--shade", colour < 0 ? "transparent" : `rgb(${colours.subarray(colour, colour + 3).join()})`);
  });
}

function move(row, column) {
  query = Math.min(count - 1, Math.max(0, row));
  key = Math.min(count - 1, Math.max(0, column));
  show();
}

sheet.width = sheet.height = count;
sheet.addEventListener("pointermove", (event) => {
  const cell = sheet.clientWidth / count;
  move(Math.floor(event.offsetY / cell), Math.floor(event.offsetX / cell));
});
sheet.addEventListener("keydown", (event) => {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (!(event.key in steps)) return;
  event.preventDefault();
  move(query + steps[event.key][0], key + steps[event.key][1]);
});
tokens.forEach((token, place) => {
  const word = document.createElement("button");
  word.type = "button";
  word.textContent = token;
  word.addEventListener("click", () => move(place, Math.min(key, place)));
  text.append(word);
});
fill(kindBox, kinds.map((each) => each.name));
kindBox.addEventListener("change", chooseKind);
layerBox.addEventListener("change", chooseLayer);
headBox.addEventListener("change", chooseHead);
chooseKind();

// Fills a heap with objects, changes them, and looks everything up.
const count = Number(process.argv[2]);
const map = new Map();
for (let i = 0; i < count; i++) {
  map.set(`key-${i}`, { id: i, name: `name ${i * 7919}`, parts: [i, i + 1, i * 0.5] });
}
for (let i = 0; i < count; i += 3) {
  map.set(`key-${i}`, { id: -i, name: "changed " + i, parts: [i] });
}
let sum = 0;
let letters = 0;
for (let i = 0; i < count; i++) {
  const value = map.get(`key-${i}`);
  sum = (sum * 31 + value.id + value.parts.length + value.parts[0]) % 1000000007;
  letters += value.name.length;
}
console.log(map.size, sum, letters);

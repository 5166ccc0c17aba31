// Keeps buffers, then computes in a function that is compiled.
const kept = [];
function loadImage(size) {
  kept.push(Buffer.allocUnsafeSlow(size));
}
function compute(n) {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += i % 7;
  return sum;
}
function tick() {
  for (let i = 0; i < 20; i++) loadImage(100000);
  if (kept.length < 400) setTimeout(tick, 1);
  else {
    console.log(compute(3e8));
    process.kill(process.pid, 'SIGKILL');
  }
}
tick();

// Runs last, when every tab has been added. A page in a frame shares its thread with the page around
// it, which goes on between the steps. The event tells that page that this one is complete.
(async function () {
  const inFrame = window.parent !== window;
  for (const _ of new Page().steps()) {
    if (inFrame) await new Promise((done) => setTimeout(done));
  }
  document.body.dataset.complete = "";
  document.dispatchEvent(new Event("complete"));
})();

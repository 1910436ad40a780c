(function draw(tries) {
  const place = document.getElementById(%(place)s);
  if (!place) return;
  if (tries === 50 && window.IntersectionObserver) {
    new IntersectionObserver(function (seen, watcher) {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      watcher.disconnect();
      draw(49);
    }, {rootMargin: "600px"}).observe(place);
  } else if (window.CircuitsVis) {
    place.textContent = "";
    CircuitsVis.render(place.id, CircuitsVis.%(element)s, %(props)s);
  } else if (tries > 0) {
    setTimeout(draw, 100, tries - 1);
  } else {
    place.textContent = "The drawing library is missing from this page: restart the kernel " +
      "and rerun the notebook.";
  }
})(50);

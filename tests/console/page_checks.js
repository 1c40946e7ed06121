// What is wrong with a page for people who use a keyboard, a reader or a small screen.
() => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) wrong.push(`wider than the window: ${root.scrollWidth}`);
  for (const each of document.querySelectorAll("input, select, textarea"))
    if (!each.labels.length && !each.getAttribute("aria-label")) wrong.push(`no label: ${each.outerHTML}`);
  for (const each of document.querySelectorAll("button, a"))
    if (!each.textContent.trim() && !each.getAttribute("aria-label")) wrong.push(`no name: ${each.outerHTML}`);
  for (const each of document.querySelectorAll("canvas, svg:not([aria-hidden])"))
    if (!each.closest("[aria-label]")) wrong.push(`no description: ${each.outerHTML.slice(0, 120)}`);
  const channels = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (color) => {
    const [red, green, blue] = channels(color).map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (each) => {
    for (; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      const parts = channels(color);
      if (parts.length === 3 || parts[3] === 1) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = "h1, h2, p, td, th, dt, dd, a, button, label, caption, .label, .note, .value, .tag, .finding";
  for (const each of document.querySelectorAll(texts)) {
    if (!each.textContent.trim() || !each.offsetParent || each.disabled) continue;
    const [one, two] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${each.outerHTML.slice(0, 120)}`);
  }
  return wrong;
}

// Every piece of text on the page, and how much it stands out from what is behind it (as WCAG 2 counts).
() => {
  const parse = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    const unit = text.startsWith("color(") ? 255 : 1;
    return [numbers[0] * unit, numbers[1] * unit, numbers[2] * unit, numbers[3] ?? 1];
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] >= 1) break;
    }
    return layers.reverse().reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join("").trim();
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (!text || !box.width || !box.height || style.visibility === "hidden" || element.closest("[hidden], .visually-hidden, .skip, title, style, script")) continue;
    const isDrawn = element instanceof SVGElement;
    const front = parse(isDrawn ? style.fill : style.color), back = behind(isDrawn ? element.closest("svg").parentElement : element);
    const [low, high] = [light(over(front, back)), light(back)].sort((a, b) => a - b);
    found.push({ ratio: (high + 0.05) / (low + 0.05), text: text.slice(0, 40), tag: element.tagName, kind: String(element.className?.baseVal ?? element.className) });
  }
  return found;
}

// What can be used or is a picture, and has no name that could be read aloud.
() => [...document.querySelectorAll("button, input, select, textarea, a[href], [role=tab], [role=img], [role=region], dialog, pre[tabindex]")]
  .filter((element) => {
    const labels = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "");
    const words = [element.getAttribute("aria-label"), element.getAttribute("title"), element.textContent, element.labels?.[0]?.textContent, ...labels];
    return !words.some((word) => word?.trim());
  })
  .map((element) => element.outerHTML.slice(0, 120))

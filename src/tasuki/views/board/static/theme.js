// Before anything is painted: the theme that was chosen, else the system's.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("tasuki-theme"); } catch { /* a browser that keeps nothing */ }
  const put = () => { document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light"); };
  const change = () => { put(); dispatchEvent(new Event("theme")); };
  dark.addEventListener("change", change);
  window.switchTheme = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("tasuki-theme", chosen); } catch { /* it holds for this page, then */ }
    change();
  };
  put();
})();

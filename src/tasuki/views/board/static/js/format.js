// Values in words, as the command line says them. Unknown is a dash.

export const NONE = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const seconds = (value) => {
  if (!isNumber(value)) return NONE;
  if (value < 0) return `-${seconds(-value)}`;
  if (value > 0 && value < 0.9995) return `${Math.round(value * 1000)}ms`;
  if (value < 59.95) return `${value.toFixed(1).replace(/\.0$/, "")}s`;
  const total = Math.round(value);
  const parts = [[Math.floor(total / 86400), "d"], [Math.floor(total / 3600) % 24, "h"],
    [Math.floor(total / 60) % 60, "m"], [total % 60, "s"]];
  const first = parts.findIndex(([count]) => count);
  return parts.slice(first, first + 2).filter(([count]) => count).map(([count, unit]) => count + unit).join("");
};

export const number = (value) => {
  if (value === null || value === undefined) return NONE;
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
};

export const count = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : NONE);
export const share = (value) => (isNumber(value) ? `${Math.round(value * 100)} %` : NONE);

export const bytes = (value) => {
  if (!isNumber(value)) return NONE;
  let left = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(left) < 999.5) return `${unit === "B" || left >= 99.5 ? Math.round(left) : Number(left.toPrecision(3))} ${unit}`;
    left /= 1000;
  }
  return `${Number(left.toPrecision(3))} TB`;
};

export const money = (value) => (isNumber(value) ? value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : NONE);

const pad = (value) => String(value).padStart(2, "0");

export const clock = (at, withSeconds = true) => {
  if (!isNumber(at)) return NONE;
  const time = new Date(at * 1000);
  return `${pad(time.getHours())}:${pad(time.getMinutes())}${withSeconds ? `:${pad(time.getSeconds())}` : ""}`;
};

export const moment = (at) => {
  if (!isNumber(at)) return NONE;
  const time = new Date(at * 1000);
  const day = `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())}`;
  return time.toDateString() === new Date().toDateString() ? clock(at) : `${day} ${clock(at, false)}`;
};

export const plural = (many, word) => `${count(many)} ${word}${many === 1 ? "" : "s"}`;

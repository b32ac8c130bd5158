// How the page writes numbers, times and sizes.

/** Formats a number: 1234567 becomes "1,234,567". */
export function number(n) {
  return n.toLocaleString('en');
}

/** Formats a number of things: count(1, 'request') is "1 request". */
export function count(n, one, many = `${one}s`) {
  return n === 1 ? `1 ${one}` : `${number(n)} ${many}`;
}

/** Formats a number to three digits: "0", "0.12", "12.3", "1.24k", "3.1M". null is "–". */
export function short(n) {
  if (n === null || n === undefined) return '–';
  const size = Math.abs(n);
  if (size >= 999.5e6) return `${trim(n / 1e9)}G`; // 999.5 M has four digits when it is rounded
  if (size >= 999.5e3) return `${trim(n / 1e6)}M`;
  if (size >= 9999.5) return `${trim(n / 1e3)}k`;
  return size >= 100 || Number.isInteger(n) ? number(Math.round(n)) : trim(n);
}

function trim(n) {
  return String(Number(n.toPrecision(3)));
}

/** Formats a share from 0 to 1 as "12 %". */
export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

/** Formats milliseconds: "12 ms", "1.24 s", "3 min 5 s". 0 means unknown and becomes "–". */
export function duration(ms) {
  if (!ms) return '–';
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`; // 999.7 is 1.00 s, not 1000 ms
  if (ms < 59950) return `${(ms / 1000).toFixed(ms < 9995 ? 2 : 1)} s`;
  return span(ms / 1000);
}

/** Formats seconds in their two largest units: "45 s", "3 min 5 s", "2 h 10 min", "4 d 3 h". */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Formats the time from an ISO time to now. now must be of the same machine's clock. */
export function ago(iso, now) {
  return iso ? span((now - Date.parse(iso)) / 1000) : '–';
}

/** Formats the time from now to an ISO time. now must be of the same machine's clock. */
export function until(iso, now) {
  return iso ? `in ${span((Date.parse(iso) - now) / 1000)}` : '';
}

/** Formats a time, a Date or in ISO form, in the browser's time zone. */
export function clock(time) {
  return time ? new Date(time).toLocaleTimeString('en-GB') : '–';
}

/** Formats a time, in ms or in ISO form, as date and time in the browser's time zone. */
export function moment(time) {
  return time ? new Date(time).toLocaleString('sv-SE') : '–';
}

/** Formats the day of an ISO time in the browser's time zone. Today is "". */
export function otherDay(iso) {
  const day = moment(iso).slice(0, 10);
  return day === moment(Date.now()).slice(0, 10) ? '' : day;
}

/** Formats a number of bytes: "812 B", "14 kB", "3.1 MB", "500 GB", "5.5 TB". */
export function bytes(n) {
  if (n < 1000) return `${n} B`;
  const [unit, size] = [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3]].find(([, least]) => n >= 0.9995 * least || least === 1e3);
  const exact = unit === 'kB' ? n < 1e4 : n < 100 * size;
  return `${(n / size).toFixed(exact ? 1 : 0)} ${unit}`;
}

/** Returns the last line of a text. */
export function lastLine(s) {
  return s.trimEnd().split('\n').at(-1);
}

/**
 * Writes the name of a type or a code as words: ConnectionsNearLimit becomes "Connections near
 * limit".
 */
export function words(name) {
  const spaced = name.replace(/(?<=[a-z])([A-Z])/g, (c) => ` ${c.toLowerCase()}`).replaceAll('_', ' ');
  return spaced.charAt(0).toUpperCase() + spaced.slice(1);
}

/**
 * Returns the URL that clients call. status is the gateway's. A gateway that listens at all
 * addresses of its machine is called at that of the page.
 */
export function clientsURL({ listen, tls }) {
  const address = listen.replace(/^(0\.0\.0\.0|\[::\])?:/, `${location.hostname}:`);
  return `${tls ? 'https' : 'http'}://${address}/v1`;
}

// Calls of the admin API.

const patience = 10_000; // ms until a call fails

/**
 * An answer of the API that is an error. status 0: there was no answer. param is the field at
 * fault.
 */
export class APIError extends Error {
  constructor(message, status, param = null) {
    super(message);
    Object.assign(this, { status, param });
  }
}

/** Reads a path of the API. Returns the parsed answer; its server's time in ms is in get.now. */
export async function get(path) {
  const answer = await call(path, { headers: { accept: 'application/json' } });
  get.now = Date.parse(answer.headers.get('date')) || Date.now();
  return answer.json();
}
get.now = Date.now();

/**
 * Makes a func that reads a path as get does, for a view whose questions may change. It returns
 * null if a later question was asked meanwhile, whose answer may have come before.
 */
export function latest() {
  let asked = 0;
  return async (path) => {
    const mine = ++asked;
    try {
      const said = await get(path);
      return mine === asked ? said : null;
    } catch (e) {
      if (mine !== asked) return null;
      throw e;
    }
  };
}

/** Has the API change something. Returns the parsed answer, or null if the answer has no body. */
export async function send(method, path, body = {}) {
  const answer = await call(path, { method, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  const said = await answer.text();
  return said === '' ? null : JSON.parse(said);
}

/** Returns why the API refuses to be read at a path; '' if it does not. */
export async function refusal(path) {
  try {
    (await call(path, {})).body.cancel();
    return '';
  } catch (e) {
    return e.message;
  }
}

async function call(path, options) {
  let answer;
  try {
    answer = await fetch(path, { signal: AbortSignal.timeout(patience), ...options });
  } catch (e) {
    throw new APIError(e.name === 'TimeoutError' ? 'Sluice has not answered for 10 s.' : 'Sluice did not answer.', 0);
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

/** Returns the error of an answer. The login is shown if the API wants one. */
export async function failure(answer) {
  if (answer.status === 401) document.dispatchEvent(new Event('unauthorized'));
  return errorOf(answer);
}

/** Returns the error of an answer that another than the API may have given. */
export async function errorOf(answer) {
  try {
    const { message, param } = (await answer.json()).error;
    return new APIError(message, answer.status, param);
  } catch {
    return new APIError(`${answer.status} ${answer.statusText}`, answer.status);
  }
}

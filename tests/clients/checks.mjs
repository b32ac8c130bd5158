// What the scripts of this directory share: a condition that must hold, and a list of checks.

// expect throws unless the condition holds. what says why, or is a value that is shown.
export function expect(holds, what) {
  if (!holds) throw new Error(typeof what === 'string' ? what : JSON.stringify(what));
}

// runChecks calls the checks one after the other, by name, and prints "ok <name>" for each. The
// first that fails ends the script. A name without a function is left out.
export async function runChecks(checks) {
  for (const [name, check] of Object.entries(checks)) {
    if (!check) continue;
    try {
      await check();
    } catch (e) {
      console.error(`FAILED ${name}: ${e.stack}`);
      process.exit(1);
    }
    console.log('ok', name);
  }
}

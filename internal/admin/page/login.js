// The login: the form that is shown while the listener needs a token, and who is logged in.

import { text } from './view.js';

const $ = (id) => document.getElementById(id);
const json = { 'content-type': 'application/json' };

let admitted = false; // whether the API answers this page

/** Reports whether the API answers this page, and shows the login if it does not. An API that is away is not asked here. */
export async function session() {
  if (admitted) return true;
  try {
    const answer = await fetch('/api/v1/session', { headers: { accept: 'application/json' } });
    if (answer.ok) show(await answer.json());
  } catch {
    return true; // the poll reports that the API is away
  }
  return admitted;
}

/** Shows the login, because the API has refused this page: its login has ended. */
export function showLogin() {
  show({ name: '', role: '', by: '' });
}

/** Shows who is logged in, or the login if nobody is. */
function show({ name, role, by }) {
  admitted = role !== '';
  document.body.dataset.role = role;
  $('login').hidden = admitted;
  $('main').hidden = !admitted;
  $('logout').hidden = by !== 'login';
  text($('who'), by === 'none' || !admitted ? '' : `${name} (${role})`);
}

async function login(event) {
  event.preventDefault();
  const token = $('login-token').value;
  $('login-token').value = '';
  fail('');
  try {
    const answer = await fetch('/api/v1/login', { method: 'POST', headers: json, body: JSON.stringify({ token }) });
    const body = await answer.json();
    if (answer.ok) show(body);
    else fail(body.error.message);
  } catch {
    fail('Sluice did not answer.');
  }
}

function fail(message) {
  text($('login-fault'), message);
  $('login-fault').hidden = message === '';
}

async function logout() {
  await fetch('/api/v1/logout', { method: 'POST', headers: json, body: '{}' }).catch(() => {});
  showLogin();
}

$('login').addEventListener('submit', login);
$('logout').addEventListener('click', logout);

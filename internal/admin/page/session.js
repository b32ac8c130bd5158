// The login: the form that is shown while the listener needs a token, and who is logged in.

import { text } from './dom.js';
import { get, send } from './api.js';
import { tell } from './dialog.js';

const $ = (id) => document.getElementById(id);

let role = ''; // the role of who is logged in; '': nobody is

/** Reports whether the page may show actions. A viewer sees none. */
export function operates() {
  return role === 'operator';
}

/**
 * Reports whether the API answers this page, and shows the login if it does not. An API that is
 * away is not asked here.
 */
export async function session() {
  if (role !== '') return true;
  try {
    show(await get('/api/v1/session'));
  } catch (e) {
    return e.status === 0; // who reads the API reports that it is away
  }
  return role !== '';
}

/** Shows who is logged in, or the login if nobody is. */
function show(who) {
  const changed = role !== who.role;
  role = who.role;
  $('login').hidden = role !== '';
  $('app').hidden = role === '';
  $('logout').hidden = who.by !== 'login';
  text($('who'), who.by === 'none' || role === '' ? '' : `${who.name} (${role})`);
  if (role === '') $('login-token').focus();
  if (changed) document.dispatchEvent(new Event('session'));
}

function close() {
  show({ name: '', role: '', by: '' });
}

async function login(event) {
  event.preventDefault();
  const token = $('login-token').value;
  $('login-token').value = '';
  fail('');
  try {
    show(await send('POST', '/api/v1/login', { token }));
  } catch (e) {
    fail(e.message);
  }
}

function fail(message) {
  text($('login-fault'), message);
  $('login-fault').hidden = message === '';
}

async function logout() {
  try {
    await send('POST', '/api/v1/logout');
    location.reload(); // the page forgets what it has shown, and the key of a tenant
  } catch (e) {
    if (e.status !== 401) tell(`You are still logged in: ${e.message}`, 'bad');
  }
}

document.addEventListener('unauthorized', close);
$('login').addEventListener('submit', login);
$('logout').addEventListener('click', logout);

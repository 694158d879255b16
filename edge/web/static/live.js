// The box's status as it changes, over /api/v1/live: the whole first, then RFC 6902 patches (docs/http.md). One connection for the page.

const AGAIN_MS = 2000;
const LONGEST_MS = 30000;
const SIGNED_OUT = 4401;

// follow({status, event, lost}) -> how to stop. status(newest): the whole status, each time something changed (a new object; what did not
// change is the same object as before); event(message): anything else the box tells; lost(): no connection, it is tried again.
export function follow({ status, event = () => {}, lost = () => {} }) {
  let socket = null, newest = null, seq = 0, tries = 0, timer = 0, ended = false;

  function open() {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/v1/live`);
    socket.addEventListener("message", (message) => take(JSON.parse(message.data)));
    socket.addEventListener("close", (closed) => {
      if (ended) return;
      if (closed.code === SIGNED_OUT) window.dispatchEvent(new CustomEvent("driftbox-signed-out"));
      lost();
      timer = setTimeout(open, Math.min(LONGEST_MS, AGAIN_MS * 2 ** tries++));
    });
  }

  function take(message) {
    if (message.type === "status") newest = message.status;
    else if (message.type !== "patch") return event(message);
    else if (newest === null || message.seq !== seq + 1) return socket.close();  // something was missed: begin anew
    else newest = patched(newest, message.patch);
    seq = message.seq;
    tries = 0;
    status(newest);
  }

  open();
  return () => { ended = true; clearTimeout(timer); socket.close(); };
}

// `document` with the operations carried out; shares with it whatever they do not touch.
export function patched(document, operations) {
  return operations.reduce((whole, operation) => changed(whole, operation.path.split("/").slice(1).map(unescaped), operation), document);
}

const unescaped = (part) => part.replaceAll("~1", "/").replaceAll("~0", "~");

function changed(node, [part, ...rest], operation) {
  if (part === undefined) return operation.value;
  const copy = Array.isArray(node) ? [...node] : { ...node };
  const place = Array.isArray(node) ? (part === "-" ? node.length : Number(part)) : part;
  if (rest.length) copy[place] = changed(node[place], rest, operation);
  else if (operation.op !== "remove") copy[place] = operation.value;  // ours never put something in between
  else if (Array.isArray(copy)) copy.splice(place, 1);
  else delete copy[place];
  return copy;
}

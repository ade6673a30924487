// A client in plain Node.js: two pipes, one JSON object a line, no library.
//
// Prints the answer to the prompt given as the first argument while it comes.

import { spawn } from "node:child_process";
import { StringDecoder } from "node:string_decoder";

const agent = spawn("dreb", ["--mode", "rpc", "--no-session"], { stdio: ["pipe", "pipe", "inherit"] });

function send(command) {
  agent.stdin.write(`${JSON.stringify(command)}\n`);
}

function handle(message) {
  if (message.type === "response" && !message.success) {
    console.error(message.error);
    process.exitCode = 1;
    agent.stdin.end();
  } else if (message.type === "message_update" && message.assistantMessageEvent.type === "text_delta") {
    process.stdout.write(message.assistantMessageEvent.delta);
  } else if (message.type === "agent_end") {
    process.stdout.write("\n");
    agent.stdin.end();
  }
}

// `readline` would also split on other separators than the line feed.
const decoder = new StringDecoder("utf8");
let rest = "";
agent.stdout.on("data", (chunk) => {
  const lines = (rest + decoder.write(chunk)).split("\n");
  rest = lines.pop();
  for (const line of lines) handle(JSON.parse(line));
});

agent.on("error", (error) => {
  console.error(error.message);
  process.exitCode = 1;
});
agent.on("close", (code) => {
  process.exitCode ||= code ?? 1;
});

send({ id: "1", type: "prompt", message: process.argv[2] });

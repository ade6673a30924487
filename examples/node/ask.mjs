import { spawn } from "node:child_process";

const args = ["--mode", "rpc", "--no-session", "--event-detail", "delta"];
const dreb = spawn("dreb", args, { stdio: ["pipe", "pipe", "inherit"] });
dreb.on("exit", (code) => (process.exitCode = code ?? 1));
const send = (command) => dreb.stdin.write(JSON.stringify(command) + "\n");

// Not readline: it also breaks lines at U+2028, which JSON strings may hold.
let rest = "";
dreb.stdout.setEncoding("utf8").on("data", (chunk) => {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop();
  lines.forEach((line) => handle(JSON.parse(line)));
});

function handle(event) {
  if (event.type === "message_update" && event.assistantMessageEvent.type === "text_delta") {
    process.stdout.write(event.assistantMessageEvent.delta);
  } else if (event.type === "message_end" && event.message.errorMessage) {
    console.error(event.message.errorMessage);
  } else if (event.type === "response" && !event.success) {
    console.error(event.error);
    dreb.stdin.end();
  } else if (event.type === "agent_settled") {
    console.log();
    dreb.stdin.end();
  }
}

send({ id: "1", type: "prompt", message: "Hello" });

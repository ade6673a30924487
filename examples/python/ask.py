import json
import subprocess

arguments = ["dreb", "--mode", "rpc", "--no-session", "--event-detail", "delta"]
dreb = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")


def send(command):
    dreb.stdin.write(json.dumps(command) + "\n")
    dreb.stdin.flush()


send({"id": "1", "type": "prompt", "message": "Hello"})
for line in dreb.stdout:
    event = json.loads(line)
    if event["type"] == "message_update" and event["assistantMessageEvent"]["type"] == "text_delta":
        print(event["assistantMessageEvent"]["delta"], end="", flush=True)
    elif event["type"] == "message_end" and "errorMessage" in event["message"]:
        print(event["message"]["errorMessage"])
    elif event["type"] == "response" and not event["success"]:
        raise SystemExit(event["error"])
    elif event["type"] == "agent_settled":
        break
print()
dreb.stdin.close()
raise SystemExit(dreb.wait())

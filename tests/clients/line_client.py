"""A client in plain Python: two pipes, one JSON object a line, no library.

Prints the answer to the prompt given as the first argument while it comes.
"""

import json
import subprocess
import sys


def main():
    agent = subprocess.Popen(
        ["dreb", "--mode", "rpc", "--no-session"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def send(command):
        agent.stdin.write(json.dumps(command).encode() + b"\n")
        agent.stdin.flush()

    send({"id": "1", "type": "prompt", "message": sys.argv[1]})
    # Iterating over a binary pipe splits on line feeds only, as the protocol wants it.
    for line in agent.stdout:
        message = json.loads(line)
        if message["type"] == "response" and not message["success"]:
            raise SystemExit(message["error"])
        if message["type"] == "message_update":
            update = message["assistantMessageEvent"]
            if update["type"] == "text_delta":
                sys.stdout.buffer.write(update["delta"].encode())
                sys.stdout.buffer.flush()
        if message["type"] == "agent_end":
            sys.stdout.buffer.write(b"\n")
            break
    agent.stdin.close()
    # The rest of the output, so that the agent is not kept from writing it.
    agent.stdout.read()
    return agent.wait()


if __name__ == "__main__":
    raise SystemExit(main())

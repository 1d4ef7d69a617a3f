"""A durable conversation (DR/duckdb) on a Ray of its own; run it twice, and it goes on where it was."""

from support_agent import support

import laneway

if __name__ == "__main__":
    with laneway.start(agents=[support], store="quickstart.duckdb") as runtime:
        conversation = runtime.conversation("order-42", agent="support")
        receipt = conversation.submit(
            "Where is order 42?", idempotency_key="message-1"
        )  # the same key, the same receipt
        print(receipt.result(timeout=30).text)
        for record in conversation.log():
            print(record["sequence"], record["type"])

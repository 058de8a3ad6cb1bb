"""Trains a small Llama on a text file by the Trainer of transformers, its optimizer included, within a
budget; with --lora, only adapters of low rank.

    pip install torch transformers accelerate peft
    python train_with_trainer.py FILE --budget 35% --lora

The bytes of the file are the tokens.
"""

import argparse

import torch
import transformers

import spillway.torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", help="the text to train on")
    parser.add_argument("--budget", default="35%", help="bytes, 2GiB, a percentage, or none: eager mode")
    parser.add_argument("--device", default="cpu", help="where the graphs of the model run: cpu or cuda [cpu]")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--lora", action="store_true", help="train adapters, and no other weights")
    parser.add_argument("--out", default="llama", help="the folder for the trained model")
    return parser.parse_args()


def model(args):
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=max(args.width // 64, 1),
        use_cache=False,
    )
    llama = transformers.LlamaForCausalLM(config)
    if not args.lora:
        return llama
    import peft

    return peft.get_peft_model(llama, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))


def data(args):
    with open(args.file, "rb") as file:
        text = torch.tensor(list(file.read()))
    starts = range(0, len(text) - args.length, args.length)
    return [dict(input_ids=text[s : s + args.length], labels=text[s : s + args.length]) for s in starts]


class Losses(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']}")


def main():
    args = arguments()
    transformers.set_seed(0)
    llama = model(args)
    trained = [p for p in llama.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    if args.budget != "none":
        # In place, so the Trainer sees the model itself. Its option torch_compile rejects the backend.
        llama.compile(backend="spillway", options={"budget": args.budget, "device": args.device})
        optimizer = spillway.torch.optimizer(optimizer)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, args.steps)
    how = transformers.TrainingArguments(
        args.out,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = transformers.Trainer(
        llama, how, train_dataset=data(args), optimizers=(optimizer, schedule), callbacks=[Losses()]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.save_model(args.out)


if __name__ == "__main__":
    main()

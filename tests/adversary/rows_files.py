"""Rows for files: what lies in the folder, what is typed beside ``BASE``, and words of the message, in their order."""

import io
import json
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """``files``: {name: text or bytes}; the command ends with status 2 and adds nothing to them."""

    files: dict[str, str | bytes]
    typed: str
    words: str


def config(**content):
    return json.dumps({"format": 3, "algorithm": "fedbuff", "model": "softmax", **content})


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


OBJECTS = npz(client=np.array([0, {}], object), duration=np.array([1.0, 2.0]))
TWO = "client,duration\n0,1\n1,2\n"
WINDOWS = "client,start,end\n0,0,5\n1,1,6\n"
OF_TWO = "--num_clients=2 --concurrency=1 --buffer_size=1"


def trace(content, words, name="t.csv", more=""):
    return Row({name: content}, f"{OF_TWO} --delay=duration_trace('{name}') {more}", words)


def presence(content, words, name="w.csv", more=""):
    return Row({name: content}, f"{OF_TWO} --availability=read_availability('{name}') {more}", words)


def from_config(content, words, typed=""):
    return Row({"c.json": content}, f"--config=c.json {typed}", words)


def from_flags(content, words, typed=""):
    return Row({"f.txt": content}, f"--flagfile=f.txt {typed}", words)


def changed(**digests):
    """A run that is over, of which a file has not the digest that its summary tells."""
    summary = {"format": 3, "status": "finished", "target_accuracy": 0.95, "digests": digests}
    return {"o/config.json": config(seed="0"), "o/metrics.jsonl": "", "o/summary.json": json.dumps(summary)}


OTHER = "0" * 64
ROWS = {
    # config.json
    "config missing": Row({}, "--config=none.json", "config is 'none.json' ... cannot be read: No such file"),
    "config folder": Row({"c/x": ""}, "--config=c", "config is 'c' ... cannot be read: Is a directory"),
    "config empty": from_config("", "config is 'c.json', but is not JSON"),
    "config not JSON": from_config("{no", "config is 'c.json', but is not JSON"),
    "config not text": from_config(b"\xff\xfe\x00", "config is 'c.json', but is not JSON"),
    "config list": from_config("[1]", "format in c.json is None ... 3, this version's"),
    "config number": from_config("7", "format in c.json is None"),
    "config null": from_config("null", "format in c.json is None"),
    "config is a summary": Row({"s.json": '{"format": 3, "status": "finished"}'}, "--config=s.json", "config is 's.json', but must be the config.json of a run, or sweep.json. It holds 'status'"),
    "config other format": from_config('{"format": 4}', "format in c.json is 4 ... 3, this version's"),
    "config earlier format": from_config('{"format": 1, "dirichlet_alpha": 0.3}', "format in c.json is 1 ... 3, this version's"),
    "config format text": from_config('{"format": "2"}', "format in c.json is '2'"),
    "config unknown setting": from_config(config(bufer_size=5), "'bufer_size' (here 5) ... 'buffer_size'?"),
    "config like no setting": from_config(config(qqqqqqqq=5), "'qqqqqqqq' (here 5) is not the name of a setting ... --help"),
    "config text for number or null": from_config(config(devices="5"), "devices is '5' ... a whole number or null"),
    "config text for number": from_config(config(num_clients="ten"), "num_clients is 'ten' ... a whole number"),
    "config fraction": from_config(config(num_clients=10.5), "num_clients is 10.5 ... a whole number"),
    "config true": from_config(config(num_clients=True), "num_clients is True ... a whole number"),
    "config null number": from_config(config(num_clients=None), "num_clients is None ... a whole number"),
    "config list number": from_config(config(num_clients=[5]), "num_clients is [5] ... a whole number"),
    "config dict": from_config(config(delay={"law": "constant"}), "delay is {'law': 'constant'} ... text"),
    "config seed": from_config(config(seed=0), "seed is 0 ... text"),
    "config switch": from_config(config(train_accuracy=1), "train_accuracy is 1 ... true or false"),
    "config NaN": from_config(config(**{"protocol.deadline": float("nan")}, protocol="synchronous"), "deadline is nan ... a number"),
    "config infinity": from_config(config(**{"protocol.deadline": float("inf")}, protocol="synchronous"), "deadline is inf ... a finite number"),
    "config call": from_config(config(delay="gamma(shape=-1)"), "delay.shape is -1.0 ... a finite number above 0"),
    "config call of code": from_config(config(delay="exit(3)"), "delay is 'exit(3)', but there is no 'exit'"),
    "config argument NaN": from_config(config(**{"delay.mean": float("nan")}), "delay.mean is nan ... a number"),
    "config argument infinity": from_config(config(**{"delay.mean": float("inf")}), "delay.mean is inf ... a finite number"),
    "config argument too large": from_config(config(**{"delay.mean": 10**400}), "delay.mean is inf ... a finite number"),
    "config argument dict": from_config(config(**{"delay.mean": {}}), "delay.mean is {} ... a number"),
    "config argument of no call": from_config(config(**{"delay": {"law": "gamma"}, "delay.mean": 2}), "delay is {'law': 'gamma'} ... text"),
    "config argument of null": from_config(config(**{"delay": None, "delay.mean": 2}), "delay is None ... text"),
    "config argument unknown": from_config(config(**{"delay.shape": 2}), "delay.shape: once_per_client ... has no argument 'shape'"),
    "config argument of no setting": from_config(config(**{"dely.shape": 2}), "'dely.shape' ... Did you mean 'delay.shape'?"),
    "config too large": from_config(config(num_clients=10**400), "num_clients is 1000000000"),
    "config bad value": from_config(config(concurrency=500), "concurrency is 500 ... number of clients, 100"),
    "config with --resume": from_config(config(), "training has no flag 'resume' ... resume is a command", "--resume"),
    "config unread typed": from_config(config(), "algorithm.staleness_weight: ace has no argument 'staleness_weight'", "--algorithm=ace --algorithm.staleness_weight=hinge"),
    "config argument typed of another call": from_config(config(partition="iid"), "partition.alpha: iid has no argument 'alpha'", "--partition.alpha=0.3"),
    "config partition": from_config(config(partition="dirichlet(alpha=-1)"), "partition.alpha is -1.0 ... above 0"),
    "config availability": from_config(config(availability="diurnal(share=2)"), "availability.share is 2.0 ... at most 1"),
    "config dropout": from_config(config(dropout="fraction(0.5)"), "dropout ... exactly one of them"),
    "config dropout null": from_config(config(dropout=None), "dropout is None ... text"),
    "config argument of a null partition": from_config(config(**{"partition": None, "partition.alpha": -1}), "partition.alpha is -1.0 ... above 0"),
    "config availability list": from_config(config(availability=["always"]), "availability is ['always'] ... text"),
    "config of earlier settings": from_config(config(dirichlet_alpha=0.3), "'dirichlet_alpha' (here 0.3) is not the name of a setting"),
    "config sweep is no sweep": from_config(config(sweep="delay.mean=1"), "sweep in c.json is 'delay.mean=1'"),
    "config sweep of nothing": from_config(config(sweep={"num_client": [1]}), "'num_client' ... 'num_clients'"),
    "config sweep of no argument": from_config(config(sweep={"delay.men": [1]}), "delay.men: ... has no argument 'men' ... Did you mean 'mean'?"),
    "config sweep wrong kind": from_config(config(sweep={"delay.mean": ["x"]}), "delay.mean is 'x' ... a number"),
    "config sweep no list": from_config(config(sweep={"delay.mean": 1}), "delay.mean in sweep of c.json is 1 ... a list"),
    "config sweep unread": from_config(
        config(sweep={"protocol.deadline": [0.1]}), "protocol.deadline is 0.1 ... protocol is asynchronous, without deadline", "--client_trips=500"
    ),
    "config sweep of another call": from_config(
        config(sweep={"partition.alpha": [0.1]}), "partition.alpha: iid has no argument 'alpha'", "--partition=iid"
    ),
    "config arms of two worlds": from_config(
        config(sweep={"delay.mean": [1.0]}, arms={"timed": {"algorithm": "fedbuff"}, "in steps": {"algorithm": "fedbuff", "protocol": "drawn_staleness"}}),
        "protocol.failure_rate is 0.3 ... read by all that are compared: in steps cannot ... protocol is drawn_staleness ... --different_worlds",
        "--protocol.failure_rate=0.3",
    ),
    "config arms of two partitions": from_config(
        config(sweep={"delay.mean": [1.0]}, arms={"few": {"algorithm": "fedbuff", "num_clients": 30}, "many": {"algorithm": "fedbuff"}}),
        "num_clients is 30 for few; 100 for many ... shares its world",
    ),
    # Flag files
    "flag file missing": Row({}, "--flagfile=none.txt", "none.txt"),
    "flags two in a line": from_flags("--seed=0 --num_clients=5", "a line of the flag file is '--seed=0 --num_clients=5', but must be --name=value alone"),
    "flags with a shell's end of line": from_flags("--seed=0 \\\n--num_clients=5", "a line of the flag file is '--seed=0 ... must be --name=value alone"),
    "flag file unknown": from_flags("--bufer_size=5", "There is no flag 'bufer_size'"),
    "flag file bad value": from_flags("--num_clients=ten", "num_clients is 'ten', but must be a whole number"),
    "flag file no flag": from_flags("num_clients 5", "'num_clients 5' is not a flag"),
    "flag file cannot work": from_flags("--concurrency=500", "concurrency is 500"),
    "flag file not text": from_flags(b"\xff\xfe--seed=1", "The file of --flagfile is not text"),
    "flag file folder": Row({"f/x": ""}, "--flagfile=f", "'f'"),
    # Duration traces
    "trace missing": Row({}, "--delay=duration_trace('none.csv')", "'none.csv' cannot be read ... No such file"),
    "trace folder": Row({"t.csv/x": ""}, "--delay=duration_trace('t.csv')", "'t.csv' cannot be read ... Is a directory"),
    "trace empty": trace("", "the header of t.csv, line 1, is ''"),
    "trace header only": trace("client,duration\n", "the number of rows in t.csv is 0"),
    "trace wrong header": trace("client,time\n0,1\n", "the header of t.csv ... client,duration"),
    "trace of windows": trace(WINDOWS, "the header of t.csv ... client,duration"),
    "trace short row": trace("client,duration\n0\n1,2\n", "t.csv, line 2 ... 2 numbers"),
    "trace text": trace("client,duration\n0,fast\n1,2\n", "the duration in t.csv, line 2, is 'fast' ... a number"),
    "trace nan": trace("client,duration\n0,nan\n1,2\n", "client 0 in t.csv, line 2, is nan ... finite"),
    "trace infinity": trace("client,duration\n0,inf\n1,2\n", "client 0 in t.csv, line 2, is inf ... finite"),
    "trace negative": trace("client,duration\n0,-1\n1,2\n", "client 0 in t.csv, line 2, is -1.0 ... at least 0"),
    "trace client": trace("client,duration\na,1\n", "the client in t.csv, line 2, is 'a'"),
    "trace client below 0": trace("client,duration\n-1,1\n", "the client in t.csv, line 2, is '-1'"),
    "trace gap": trace("client,duration\n0,1\n2,2\n", "'t.csv' has no row of client 1"),
    "trace too many": trace(TWO + "2,3\n", "the number of clients in the trace t.csv ... is 3 ... 2"),
    "trace too few": trace("client,duration\n0,1\n", "the number of clients in the trace t.csv is 1 ... 2"),
    "trace not UTF-8": trace(b"client,duration\n0,\xff\n", "'t.csv' cannot be read"),
    "trace not cycled": trace(TWO, "has 1 trips of client", more="--delay.cycled=False"),
    "trace cycled by a number": trace(TWO, "delay.cycled is 1 ... True or False", more="--delay.cycled=1"),
    "trace always 0": trace("client,duration\n0,0\n1,2\n", "above 0 for every client"),
    "trace mean": trace(TWO, "delay.mean: duration_trace(path='t.csv') has no argument 'mean'; it has path, cycled", more="--delay.mean=2"),
    "trace by its name alone": Row({"t.csv": TWO}, "--delay=t.csv", "delay is 't.csv' ... A file is read by duration_trace('t.csv')"),
    "trace without quotes": Row({"t.csv": TWO}, "--delay=duration_trace(t.csv)", "delay is 'duration_trace(t.csv)' ... A text stands in quotes: 't.csv'"),
    "trace without a file": Row({"t.csv": TWO}, "--delay=duration_trace", "duration_trace lacks its argument path"),
    "trace of another path": trace(TWO, "delay.path is 'u.csv' ... left out where delay says it, too", more="--delay.path=u.csv"),
    "trace of a law": Row({}, "--delay=duration_trace(gamma)", "delay.path is 'gamma' ... a text in quotes"),
    "trace inside another law": Row(
        {"t.csv": "client,duration\n0,1\n"}, f"{OF_TWO} --delay=throttled(duration_trace('t.csv'),0.5,[0])", "the number of clients in the trace t.csv is 1 ... 2"
    ),
    "trace ending": trace(TWO, "'t.txt' ... must end in .csv or .npz", "t.txt"),
    "npz text": trace("no zip", "'t.npz' cannot be read", "t.npz"),
    "npz npy": trace(npy(np.ones(3)), "'t.npz' ... one array (.npy)", "t.npz"),
    "npz objects": trace(OBJECTS, "'t.npz' cannot be read", "t.npz"),
    "npz cut": trace(npz(client=np.arange(2), duration=np.ones(2))[:-30], "'t.npz' cannot be read", "t.npz"),
    "npz arrays": trace(npz(client=np.arange(2)), "the arrays in t.npz ... client,duration", "t.npz"),
    "npz lengths": trace(npz(client=np.arange(2), duration=np.ones(3)), "the length of the array", "t.npz"),
    "npz kinds": trace(npz(client=np.ones(2), duration=np.ones(2)), "the array client in t.npz", "t.npz"),
    "npz shape": trace(npz(client=np.arange(2), duration=np.ones((2, 2))), "the array duration in t.npz", "t.npz"),
    # Availability traces
    "windows missing": Row({}, "--availability=read_availability('none.csv')", "'none.csv' cannot be read"),
    "windows header": presence(TWO, "the header of w.csv ... client,start,end"),
    "windows backwards": presence("client,start,end\n0,5,1\n1,0,1\n", "the end of client 0 in w.csv, line 2, is 1.0"),
    "windows negative": presence("client,start,end\n0,-5,1\n1,0,1\n", "the start of client 0 in w.csv, line 2, is -5.0"),
    "windows overlap": presence("client,start,end\n0,0,5\n0,3,9\n1,0,1\n", "the start of client 0 in w.csv, line 3"),
    "windows nan": presence("client,start,end\n0,nan,5\n1,0,1\n", "the start of client 0 in w.csv, line 2, is nan"),
    "windows beyond the period": presence(
        WINDOWS, "the end of client 0 in w.csv ... at most cycle_after, 3", more="--availability.cycle_after=3"
    ),
    "windows period 0": presence(WINDOWS, "availability.cycle_after is 0.0 ... above 0", more="--availability.cycle_after=0"),
    "windows period nan": presence(WINDOWS, "availability.cycle_after is 'nan' ... a number", more="--availability.cycle_after=nan"),
    "windows period inf": presence(WINDOWS, "availability.cycle_after is inf ... a finite number", more="--availability.cycle_after=inf"),
    "windows by their name alone": Row({"w.csv": WINDOWS}, "--availability=w.csv", "availability is 'w.csv' ... A file is read by read_availability('w.csv')"),
    "windows without quotes": Row({"w.csv": WINDOWS}, "--availability=read_availability(w.csv)", "availability is 'read_availability(w.csv)' ... A text stands in quotes: 'w.csv'"),
    "windows without a file": Row({"w.csv": WINDOWS}, "--availability=read_availability", "read_availability lacks its argument path"),
    "windows of another path": presence(WINDOWS, "availability.path is 'u.csv' ... left out where availability says it, too", more="--availability.path=u.csv"),
    "windows ending": presence(WINDOWS, "'w.txt' ... must end in .csv or .npz", "w.txt"),
    "windows are over": presence(WINDOWS, "Error: The schedule starves at time ... 2 will never be there again (availability)"),
    "windows of others": presence("client,start,end\n0,0,5\n", "the number of clients of the availability is 1"),
    # Data sets
    "data not prepared": Row({}, "--dataset=mnist --data_dir=.", "mnist ... prepare"),
    "data of a package": Row({}, "--dataset=fashion_mnist --data_dir=.", "run.py prepare fashion_mnist --data_dir=. ... apt-get install dataset-fashion-mnist"),
    "data folder missing": Row({}, "--dataset=cifar10 --data_dir=none", "cifar10 ... prepare"),
    "data folder is a file": Row({"d": "x"}, "--dataset=cifar10 --data_dir=d", "cifar10"),
    "leaf missing": Row({}, "--dataset=femnist/leaf --data_dir=.", "femnist"),
    "leaf not JSON": Row({"d/train/a.json": "{", "d/test/a.json": "{"}, "--dataset=femnist/leaf --data_dir=d", "a.json"),
    "prepare unknown": Row({}, "--algorithm=fedbuff", ""),
    # Run directories
    "resume nothing": Row({}, "resume none", "output_dir is 'none' ... holds nothing to go on with"),
    "resume a report": Row({}, "report o --resume", "report has no flag 'resume' ... resume is a command"),
    "overwrite a report": Row({}, "report o --overwrite", "report has no flag 'overwrite'"),
    "overwrite what is prepared": Row({}, "prepare digits --overwrite", "prepare has no flag 'overwrite'"),
    "resume nowhere": Row({}, "resume", "resume needs DIRECTORY: write resume runs/001, for example"),
    "output is a file": Row({"o": "x"}, "--output_dir=o", "output_dir is 'o'"),
    "output below a file": Row({"o": "x"}, "--output_dir=o/p", "output_dir is 'o/p'"),
    "output has a run": Row({"o/config.json": config()}, "--output_dir=o", "output_dir is 'o' ... already holds a run"),
    "output has a sweep": Row({"o/sweep.json": config(sweep={})}, "--output_dir=o", "output_dir is 'o' ... holds a sweep"),
    "resume a damaged config": Row({"o/config.json": "{"}, "resume o", "o is damaged: o/config.json is not JSON"),
    "resume no settings": Row({"o/config.json": "[]"}, "resume o", "o is damaged: o/config.json ... holds []"),
    "resume with --overwrite": Row(
        {"o/config.json": config()}, "resume o --overwrite", "resume has no flag 'overwrite'"
    ),
    "resume with --report": Row(
        {"o/config.json": config()}, "resume o --report=o", "resume has no flag 'report'"
    ),
    "sweep in a run": Row(
        {"o/config.json": config()}, "sweep delay.mean=1,2 --output_dir=o", "output_dir is 'o' ... already holds a run"
    ),
    "resume an edited config": Row(
        changed(**{"config.json": OTHER}), "resume o", "o is damaged: config.json has changed ... 000000000000 in summary.json ... put it back ... remove or rename"
    ),
    "resume an edited summary": Row(
        changed(**{"summary.json": OTHER}), "resume o", "o is damaged: summary.json has changed ... put it back"
    ),
    "resume edited digests": Row(
        changed(**{"config.json": 7}), "resume o", "o is damaged: config.json has changed"
    ),
    "sweep damaged": Row({"o/sweep.json": "{"}, "sweep delay.mean=1,2 --output_dir=o", "sweep.json is not JSON"),
}  # fmt: skip
del ROWS["prepare unknown"]
# Without ``BASE``, since it does not train.
ALONE = {
    "help of what is no command": Row({}, "help sweeep", "is called 'sweeep'. Did you mean 'sweep'?"),
    "help of two": Row({}, "help sweep more", "help is 'sweep more', but must be one name."),
    "config both ends": from_config(config(client_trips=5, server_steps=5), "server_steps is 5 ... where client_trips is given"),
    "report nowhere": Row({}, "report none", "'none' is not a directory"),
    "report nothing": Row({"a/x": ""}, "report a", "There is no run in 'a'"),
    "report of an edited config": Row(changed(**{"config.json": OTHER}), "report o", "o: config.json has changed since it was written"),
    "report of edited metrics": Row(changed(**{"metrics.jsonl": OTHER}), "report o", "no run in 'o' that can be read"),
    "report of an edited summary": Row(changed(**{"summary.json": OTHER}), "report o", "o: summary.json has changed since it was written"),
    "resume an edited sweep": Row(
        {"o/sweep.json": config(sweep={}, digests={"sweep.json": "0"})}, "resume o", "sweep.json has changed since it was written"
    ),
    "resume an edited comparison": Row(
        {"o/comparison.json": config(digests={"comparison.json": "0"})}, "resume o", "comparison.json has changed since it was written"
    ),
    "report of no digests": Row(
        {**changed(), "o/summary.json": json.dumps({"format": 3, "status": "finished", "digests": [1]})}, "report o", "o: digests in summary.json is [1]"
    ),
    "report with settings": Row({"a/x": ""}, "report a --seed=1", "report has no flag 'seed'"),
    "prepare unknown": Row({}, "prepare minst", "'minst' ... 'mnist'"),
    "prepare digits": Row({}, "prepare digits", "'digits'"),
    "prepare with settings": Row({}, "prepare mnist --seed=1", "prepare has no flag 'seed'"),
    "experiment unknown": Row({}, "experiment fedbuf_table1", "fedbuf_table1 ... fedbuff_table1"),
    "experiment scale": Row({}, "experiment fedbuff_table1 --scale=large", "scale of fedbuff_table1 is 'large' ... one of desk, paper"),
    "experiment algorithm": Row({}, "experiment fedbuff_table1 --algorithm=ace", "algorithm is 'ace' ... left out"),
    "experiment on hosts": Row({}, "experiment list --distributed=auto", "experiment has no flag 'distributed' ... only training and resume read it"),
    "report on hosts": Row({}, "report o --distributed=auto", "report has no flag 'distributed'"),
    "sweep resumed on hosts": Row(
        {"o/sweep.json": config(sweep={})}, "resume o --distributed=auto", "distributed is 'auto' ... left out of a sweep"
    ),
    "experiment config": Row({}, "experiment list --config=c", "experiment has no flag 'config'"),
    "benchmark unknown": Row({}, "benchmark client", "benchmark is 'client' ... one of clients. Did you mean 'clients'"),
    "benchmark empty": Row({}, "benchmark", "benchmark needs NAME"),
    "benchmark settings": Row({}, "benchmark clients --partition.alpha=1", "benchmark has no flag 'partition.alpha'"),
    "benchmark seed": Row({}, "benchmark clients --seed=1", "benchmark has no flag 'seed'"),
    "benchmark sweep": Row({}, "benchmark clients --sweep=num_clients=1,2", "benchmark has no flag 'sweep' ... sweep is a command"),
    "benchmark report": Row({"a/x": ""}, "benchmark clients --report=a", "benchmark has no flag 'report' ... report is a command"),
    "benchmark experiment": Row({}, "benchmark clients --experiment=list", "benchmark has no flag 'experiment'"),
    "benchmark forecast": Row({}, "benchmark clients --forecast=h100", "benchmark has no flag 'forecast'"),
    "benchmark with a report": Row({}, "benchmark clients --report=o", "benchmark has no flag 'report'"),
    "benchmark trackers": Row({}, "benchmark clients --trackers=csv", "benchmark has no flag 'trackers'"),
    "benchmark processes": Row({}, "benchmark clients --processes=2", "benchmark has no flag 'processes'"),
    "benchmark algorithm": Row({}, "benchmark clients --algorithm=fedbuf", "algorithm is 'fedbuf' ... 'fedbuff'"),
    "benchmark model": Row({}, "benchmark clients --model=mpl", "model is 'mpl' ... one of emnist_cnn, lenet5, mlp, resnet18 ... 'mlp'"),
    "benchmark no names": Row({}, "benchmark clients --algorithm=,", "algorithm is ',' ... with commas"),
    "benchmark no row": Row({}, "benchmark clients --model=lenet5 --num_clients=7", "benchmark with is 'model=lenet5, num_clients=7' ... such that a row fits"),
    "benchmark no client": Row({}, "benchmark clients --num_clients=0", "num_clients is 0 ... at least 1"),
    "benchmark short": Row({}, "benchmark clients --client_trips=5", "client_trips is 5 ... at least 20, for two server steps"),
    "benchmark devices": Row({}, "benchmark clients --devices=0", "devices is 0 ... at least 1"),
    "benchmark precision": Row({}, "benchmark clients --precision.compute_dtype=int4", "compute_dtype is 'int4' ... bfloat16"),
    "benchmark resume": Row({}, "benchmark clients --resume", "output_dir is None ... to go on with"),
    "benchmark resume nothing": Row({"o/x": ""}, "benchmark clients --resume --output_dir=o", "output_dir is 'o/benchmark.json' ... cannot be read"),
    "benchmark resume damage": Row({"o/benchmark.json": "{"}, "benchmark clients --resume --output_dir=o", "is not JSON ... damaged"),
    "benchmark there": Row({"o/benchmark.json": "{"}, "benchmark clients --output_dir=o", "output_dir is 'o' ... without a benchmark ... --overwrite"),
    "benchmark on a run": Row({"o/config.json": "{}"}, "benchmark clients --overwrite --output_dir=o", "output_dir is 'o' ... without a run"),
    "benchmark both": Row({"o/benchmark.json": "{"}, "benchmark clients --resume --overwrite --output_dir=o", "overwrite is True ... left out with --resume"),
    "compare one": Row({}, "compare a.json", "compare is 'a.json' ... two files"),
    "compare empty": Row({}, "compare", "compare needs FILE FILE"),
    "compare nowhere": Row({}, "compare a.json b.json", "compare is 'a.json' ... cannot be read"),
    "compare damage": Row({"a.json": "{", "b.json": "{}"}, "compare a.json b.json", "compare is 'a.json' ... is not JSON"),
    "compare else": Row({"a.json": "{}", "b.json": "{}"}, "compare a.json b.json", "compare is 'a.json' ... holds no benchmark"),
    "compare settings": Row({}, "compare a.json b.json --num_clients=5", "compare has no flag 'num_clients'"),
    "compare resume": Row({}, "compare a.json b.json --resume", "compare has no flag 'resume'"),
    "forecast unknown": Row({}, "forecast v9:1x1 --algorithm=fedbuff", "v9:1x1"),
    "forecast output": Row({}, "forecast h100 --output_dir=o", "forecast has no flag 'output_dir'"),
}  # fmt: skip

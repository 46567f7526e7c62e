"""The commands of `isotherm`."""

from typing import Annotated

import typer

from ... import __version__
from .bench import bench
from .calibrate import calibrate
from .chat import chat
from .config import config
from .demo import demo
from .doctor import doctor
from .key import key
from .models import list_models, remove_model, show_model
from .output import out
from .plan import plan
from .profile import profile
from .pull import pull
from .serve import serve
from .service import service
from .simulate import simulate
from .status import status
from .stop import stop
from .top import top

app = typer.Typer(
    name="isotherm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve mixture-of-experts language models through an OpenAI-compatible API.

    Begin with: isotherm serve --background && isotherm chat
    """


for command in (serve, chat, status, stop, demo, bench, calibrate, simulate, key, doctor, pull, top):
    app.command()(command)
app.command("list")(list_models)
app.command("show")(show_model)
app.command("rm")(remove_model)
app.add_typer(config, name="config")
app.add_typer(plan, name="plan")
app.add_typer(profile, name="profile")
app.add_typer(service, name="service")

"""Loads kio before hypothesis is: no strategy draws its types, and telling it of them takes time."""

from service.cli.kio_alone import import_kio_alone

import_kio_alone()

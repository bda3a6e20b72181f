"""Findings about a release bundle as an archive: its wrapping, its headers, its names and what is in it."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict


def _entry(id: str, message: str, explanation: str, *, verdict: Verdict = Verdict.FAILED) -> Entry:
    return Entry(id=f"bundle.{id}", verdict=verdict, message=message, explanation=explanation)


ENTRIES = (
    _entry(
        "not-gzip",
        "not a gzip file",
        "A release bundle is a tar archive in one gzip member, and this file does not begin like one. It is another file, or it\n"
        "was damaged. Nothing in it was read.",
    ),
    _entry(
        "gzip-header",
        "the gzip header says more than it may",
        "The header of the gzip wrapping has flags, a file name, a comment, extra fields or a time. Nobody signed those bytes, and\n"
        "tools act on some of them. `mint2m release build` writes none; `gzip -n` writes none either.",
    ),
    _entry(
        "gzip-damaged",
        "the gzip wrapping is damaged",
        "A block of the compressed data is malformed, or its checksum or length is not that of the content. The file was damaged in\n"
        "transfer or changed. Get it again; its content counts for nothing.",
    ),
    _entry(
        "gzip-member",
        "a second gzip member follows",
        "Some tools unpack all members of a gzip file and some only the first, so two people would see two archives. A release\n"
        "bundle has exactly one member.",
    ),
    _entry(
        "truncated",
        "the archive ends too early",
        "The file ends in the middle of the wrapping, a header or a member. The transfer was cut short, or a tail was removed.\n"
        "Get the file again.",
    ),
    _entry(
        "trailing-data",
        "something follows the end of the archive",
        "After the two blocks of zeros that end a tar archive, or after the gzip member, the file goes on. Nobody signed what is\n"
        "there, and some tools read it. A release bundle ends where its content ends.",
    ),
    _entry(
        "header-checksum",
        "a member's header does not have its checksum",
        "A tar header carries the sum of its own bytes, and this one is another. The archive was damaged or edited by hand, or\n"
        "the place where a header should stand holds something else.",
    ),
    _entry(
        "not-canonical",
        "the archive is not written in its one form",
        "Name, size and executable bit of each member determine every byte of its header, and zeros fill its last block. Here a\n"
        "byte is another: an owner, a time, a mode, a second spelling of a number, or something in the padding. Tools read such\n"
        "fields differently. The archive was not made by `mint2m release build`, or was changed since.",
    ),
    _entry(
        "link",
        "a link in the archive",
        "A link can make a later member, or another program, write or read outside the place where the archive is unpacked.\n"
        "Release bundles hold regular files only. Nothing was written.",
    ),
    _entry(
        "device",
        "a device or pipe in the archive",
        "Devices and pipes have no content that could be signed, and opening one can hang or have effects. Release bundles hold\n"
        "regular files only. Nothing was written.",
    ),
    _entry(
        "directory",
        "a directory entry in the archive",
        "Directories follow from the names of the files in them. An entry of its own could give one a mode or an owner, or leave\n"
        "something there that nobody signed.",
    ),
    _entry(
        "pax",
        "a PAX header in the archive",
        "PAX headers replace the name, size or owner of the member that follows, and tools differ in which of the two they\n"
        "believe. A release bundle has none.",
    ),
    _entry(
        "gnu-extension",
        "a GNU extension in the archive",
        "Long names, sparse files, volume labels and their like are read by some tools and not by others, or as something else.\n"
        "A release bundle has none.",
    ),
    _entry(
        "entry-type",
        "a member of an unknown type",
        "The header's type is not that of a regular file, and POSIX lets tools treat unknown types as they like. Nothing was written.",
    ),
    _entry(
        "path-absolute",
        "a member with an absolute name",
        "Unpacked naively it would be written wherever it says. Names in a release bundle are relative. Nothing was written.",
    ),
    _entry(
        "path-outside",
        "a member whose name leads out of the archive",
        "The name has a `..` segment, by which a careless tool would write above the place of unpacking. Nothing was written.",
    ),
    _entry(
        "path-invalid",
        "a member whose name no bundle may hold",
        "Names are relative POSIX paths in UTF-8 and Unicode normal form C, without empty or `.` segments, backslashes, control\n"
        "characters or `.git` directories. Another name is another file on another system. Nothing was written.",
    ),
    _entry(
        "path-collision-case",
        "two names that differ in case only",
        "On a file system that ignores case the second replaces the first, so what is there after unpacking depends on the\n"
        "machine. Directories count as well. Nothing was written.",
    ),
    _entry(
        "path-collision-unicode",
        "two names that differ in their Unicode form only",
        "On a file system that composes or decomposes names the second replaces the first, so what is there after unpacking\n"
        "depends on the machine. Directories count as well. Nothing was written.",
    ),
    _entry(
        "path-conflict",
        "one name is both a file and a directory",
        "A member is named like a directory that another member lies in. No file system can hold both; tools differ in which one\n"
        "they drop.",
    ),
    _entry(
        "member-duplicate",
        "a name twice in the archive",
        "Some tools keep the first and some the last of two members with one name. A release bundle names each file once.",
    ),
    _entry(
        "member-unlisted",
        "a member that the signed manifest does not list",
        "The archive holds a file that the signer did not sign. It was added later. Nothing was written, and nothing behind it\n"
        "was read.",
    ),
    _entry(
        "member-missing",
        "a member of the signed manifest is missing",
        "The signer signed a file that the archive does not hold. It was removed, or the archive is of another build.",
    ),
    _entry(
        "member-changed",
        "a member is not the one that was signed",
        "The signed statement names this file with a SHA-256, and the bytes in the archive have another one. The file was changed\n"
        "or damaged. If the signature is genuine, the change came after it was made.",
    ),
    _entry(
        "size-mismatch",
        "a member has not the size that was signed",
        "The header says another size than the signed manifest. The content was not read, so nothing could unfold: a member that\n"
        "claims gigabytes is refused here.",
    ),
    _entry(
        "mode-mismatch",
        "a member's executable bit is not as signed",
        "The header makes a file executable that was signed as one that is not, or the reverse.",
    ),
    _entry(
        "out-of-order",
        "the members are not in the signed order",
        "Members stand in the order of the manifest: it, the signatures, then all others sorted by name. Another order is another\n"
        "archive, and some tricks need one.",
    ),
    _entry(
        "head-invalid",
        "the archive does not begin with a manifest and its signature",
        "The first member is release.json and the second release.sigstore.json, so that both can be verified before anything else\n"
        "is looked at. This archive begins with something else, or one of them is larger than it can be.",
    ),
    _entry(
        "name-mismatch",
        "the archive's file name is not that of the signed version",
        "A bundle is called mint2m-v<version>-release-bundle.tar.gz, with the version that was signed. An older release under a\n"
        "newer name is a downgrade. Give the file its name back, and look whether it is the version that you want.",
    ),
)

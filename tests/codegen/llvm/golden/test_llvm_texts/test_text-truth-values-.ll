; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 1 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 1 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.32, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i8, ptr %A, i64 %.9
  %.11 = load <8 x i8>, ptr %.10, align 1
  %.12 = icmp ne <8 x i8> %.11, zeroinitializer
  %.13 = getelementptr i8, ptr %.10, i64 8
  %.14 = load <8 x i8>, ptr %.13, align 1
  %.15 = icmp ne <8 x i8> %.14, zeroinitializer
  %.16 = xor <8 x i1> %.12, splat (i1 true)
  %.17 = xor <8 x i1> %.15, splat (i1 true)
  %.18 = getelementptr float, ptr %B, i64 %.9
  %.19 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.18, <8 x i1> %.12, <8 x float> zeroinitializer)
  %.20 = getelementptr float, ptr %.18, i64 8
  %.21 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.20, <8 x i1> %.15, <8 x float> zeroinitializer)
  %.22 = fcmp olt <8 x float> %.19, splat (float 0x3FE0000000000000)
  %.23 = fcmp olt <8 x float> %.21, splat (float 0x3FE0000000000000)
  %.24 = xor <8 x i1> %.22, splat (i1 true)
  %.25 = xor <8 x i1> %.23, splat (i1 true)
  %.26 = select <8 x i1> %.12, <8 x i1> %.24, <8 x i1> zeroinitializer
  %.27 = select <8 x i1> %.15, <8 x i1> %.25, <8 x i1> zeroinitializer
  %.28 = getelementptr i8, ptr %C, i64 %.9
  %.29 = zext <8 x i1> %.26 to <8 x i8>
  store <8 x i8> %.29, ptr %.28, align 1
  %.30 = getelementptr i8, ptr %.28, i64 8
  %.31 = zext <8 x i1> %.27 to <8 x i8>
  store <8 x i8> %.31, ptr %.30, align 1
  %i_next.32 = add nuw nsw i64 %i.8, 1
  %.33 = icmp slt i64 %i_next.32, %.4
  br i1 %.33, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 1 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 1 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.21, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i8, ptr %A, i64 %.9
  %.11 = load <16 x i8>, ptr %.10, align 1
  %.12 = icmp ne <16 x i8> %.11, zeroinitializer
  %.13 = xor <16 x i1> %.12, splat (i1 true)
  %.14 = getelementptr float, ptr %B, i64 %.9
  %.15 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.14, <16 x i1> %.12, <16 x float> zeroinitializer)
  %.16 = fcmp olt <16 x float> %.15, splat (float 0x3FE0000000000000)
  %.17 = xor <16 x i1> %.16, splat (i1 true)
  %.18 = select <16 x i1> %.12, <16 x i1> %.17, <16 x i1> zeroinitializer
  %.19 = getelementptr i8, ptr %C, i64 %.9
  %.20 = zext <16 x i1> %.18 to <16 x i8>
  store <16 x i8> %.20, ptr %.19, align 1
  %i_next.21 = add nuw nsw i64 %i.8, 1
  %.22 = icmp slt i64 %i_next.21, %.4
  br i1 %.22, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}

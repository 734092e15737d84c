; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(8) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.24, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr i32, ptr %A, i64 %.9
  %.11 = load <8 x i32>, ptr %.10, align 4
  %.12 = shufflevector <8 x i32> %.11, <8 x i32> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %.13 = shufflevector <8 x i32> %.11, <8 x i32> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %.14 = call <4 x i32> @llvm.smax.v4i32(<4 x i32> %.12, <4 x i32> %.13)
  %.15 = shufflevector <4 x i32> %.14, <4 x i32> poison, <2 x i32> <i32 0, i32 1>
  %.16 = shufflevector <4 x i32> %.14, <4 x i32> poison, <2 x i32> <i32 2, i32 3>
  %.17 = call <2 x i32> @llvm.smax.v2i32(<2 x i32> %.15, <2 x i32> %.16)
  %.18 = shufflevector <2 x i32> %.17, <2 x i32> poison, <1 x i32> zeroinitializer
  %.19 = shufflevector <2 x i32> %.17, <2 x i32> poison, <1 x i32> splat (i32 1)
  %.20 = call <1 x i32> @llvm.smax.v1i32(<1 x i32> %.18, <1 x i32> %.19)
  %.21 = extractelement <1 x i32> %.20, i64 0
  %.22 = load i32, ptr %C, align 4
  %.23 = call i32 @llvm.smax.i32(i32 %.22, i32 %.21)
  store i32 %.23, ptr %C, align 4
  %i_next.24 = add nuw nsw i64 %i.8, 1
  %.25 = icmp slt i64 %i_next.24, %.4
  br i1 %.25, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  %.26 = load <4 x i32>, ptr %A, align 4
  %.27 = shufflevector <4 x i32> %.26, <4 x i32> poison, <2 x i32> <i32 0, i32 1>
  %.28 = shufflevector <4 x i32> %.26, <4 x i32> poison, <2 x i32> <i32 2, i32 3>
  %.29 = call <2 x i32> @llvm.smin.v2i32(<2 x i32> %.27, <2 x i32> %.28)
  %.30 = shufflevector <2 x i32> %.29, <2 x i32> poison, <1 x i32> zeroinitializer
  %.31 = shufflevector <2 x i32> %.29, <2 x i32> poison, <1 x i32> splat (i32 1)
  %.32 = call <1 x i32> @llvm.smin.v1i32(<1 x i32> %.30, <1 x i32> %.31)
  %.33 = extractelement <1 x i32> %.32, i64 0
  %.34 = getelementptr i32, ptr %C, i64 1
  %.35 = load i32, ptr %.34, align 4
  %.36 = call i32 @llvm.smin.i32(i32 %.35, i32 %.33)
  store i32 %.36, ptr %.34, align 4
  br label %join.2
join.2:
  ret void
}

declare i32 @llvm.smax.i32(i32, i32)
declare <1 x i32> @llvm.smax.v1i32(<1 x i32>, <1 x i32>)
declare <2 x i32> @llvm.smax.v2i32(<2 x i32>, <2 x i32>)
declare <4 x i32> @llvm.smax.v4i32(<4 x i32>, <4 x i32>)
declare i32 @llvm.smin.i32(i32, i32)
declare <1 x i32> @llvm.smin.v1i32(<1 x i32>, <1 x i32>)
declare <2 x i32> @llvm.smin.v2i32(<2 x i32>, <2 x i32>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(8) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.24, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr i32, ptr %A, i64 %.9
  %.11 = load <8 x i32>, ptr %.10, align 4
  %.12 = shufflevector <8 x i32> %.11, <8 x i32> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %.13 = shufflevector <8 x i32> %.11, <8 x i32> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %.14 = call <4 x i32> @llvm.smax.v4i32(<4 x i32> %.12, <4 x i32> %.13)
  %.15 = shufflevector <4 x i32> %.14, <4 x i32> poison, <2 x i32> <i32 0, i32 1>
  %.16 = shufflevector <4 x i32> %.14, <4 x i32> poison, <2 x i32> <i32 2, i32 3>
  %.17 = call <2 x i32> @llvm.smax.v2i32(<2 x i32> %.15, <2 x i32> %.16)
  %.18 = shufflevector <2 x i32> %.17, <2 x i32> poison, <1 x i32> zeroinitializer
  %.19 = shufflevector <2 x i32> %.17, <2 x i32> poison, <1 x i32> splat (i32 1)
  %.20 = call <1 x i32> @llvm.smax.v1i32(<1 x i32> %.18, <1 x i32> %.19)
  %.21 = extractelement <1 x i32> %.20, i64 0
  %.22 = load i32, ptr %C, align 4
  %.23 = call i32 @llvm.smax.i32(i32 %.22, i32 %.21)
  store i32 %.23, ptr %C, align 4
  %i_next.24 = add nuw nsw i64 %i.8, 1
  %.25 = icmp slt i64 %i_next.24, %.4
  br i1 %.25, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  %.26 = load <4 x i32>, ptr %A, align 4
  %.27 = shufflevector <4 x i32> %.26, <4 x i32> poison, <2 x i32> <i32 0, i32 1>
  %.28 = shufflevector <4 x i32> %.26, <4 x i32> poison, <2 x i32> <i32 2, i32 3>
  %.29 = call <2 x i32> @llvm.smin.v2i32(<2 x i32> %.27, <2 x i32> %.28)
  %.30 = shufflevector <2 x i32> %.29, <2 x i32> poison, <1 x i32> zeroinitializer
  %.31 = shufflevector <2 x i32> %.29, <2 x i32> poison, <1 x i32> splat (i32 1)
  %.32 = call <1 x i32> @llvm.smin.v1i32(<1 x i32> %.30, <1 x i32> %.31)
  %.33 = extractelement <1 x i32> %.32, i64 0
  %.34 = getelementptr i32, ptr %C, i64 1
  %.35 = load i32, ptr %.34, align 4
  %.36 = call i32 @llvm.smin.i32(i32 %.35, i32 %.33)
  store i32 %.36, ptr %.34, align 4
  br label %join.2
join.2:
  ret void
}

declare i32 @llvm.smax.i32(i32, i32)
declare <1 x i32> @llvm.smax.v1i32(<1 x i32>, <1 x i32>)
declare <2 x i32> @llvm.smax.v2i32(<2 x i32>, <2 x i32>)
declare <4 x i32> @llvm.smax.v4i32(<4 x i32>, <4 x i32>)
declare i32 @llvm.smin.i32(i32, i32)
declare <1 x i32> @llvm.smin.v1i32(<1 x i32>, <1 x i32>)
declare <2 x i32> @llvm.smin.v2i32(<2 x i32>, <2 x i32>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
